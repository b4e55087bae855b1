"""From the hidden states of a text's tokens to one vector (sections 3.1 and 4.2).

v = h_0                              cls, the first token
v = sum_t m_t h_t / sum_t m_t        mean, m the mask without padding
"""

from torch import Tensor


def pool(states: Tensor, attention: Tensor, pooling: str) -> Tensor:
    """One vector a row.

    Args:
        states: Hidden states, shape ``(R, T, D)``.
        attention: 1 for tokens, 0 for padding, shape ``(R, T)``.
        pooling: ``cls`` the first token, ``mean`` over tokens.

    Returns:
        Shape ``(R, D)``.
    """
    if pooling == "cls":
        return states[:, 0]
    weights = attention.unsqueeze(-1).to(states.dtype)  # (R, T, 1)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)
