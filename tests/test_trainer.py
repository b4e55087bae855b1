"""The loop: accumulation, schedule, states; a run killed and resumed is the run never killed."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ccpretrieve.errors import UserError
from ccpretrieve.training.objective import Loss, Objective
from ccpretrieve.training.process import Processes
from ccpretrieve.training.states import States
from ccpretrieve.training.trainer import Trainer
from ccpretrieve.training_config import TrainingConfig
from ccpretrieve.values import plain


class Regression(Objective):
    """Least squares on random points, with dropout, so that random states matter."""

    def __init__(self, scores=(), broken_at=None):
        torch.manual_seed(3)
        self.module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.points = torch.Generator().manual_seed(5)
        self.updates = 0
        self.forwards = 0
        self.scores = list(scores)
        self.broken_at = broken_at
        torch.manual_seed(7)

    def draw(self, passes):
        pass

    def loss(self, module):
        self.forwards += 1
        x = torch.randn(2, 4, generator=self.points)
        value = (module(x) - x.sum(dim=1, keepdim=True)).square().mean()
        if self.updates + 1 == self.broken_at:
            value = value * float("nan")
        return Loss(value, "squares", 8, f"batch {self.forwards}")

    def updated(self):
        self.updates += 1

    def measures(self):
        return {"updates": float(self.updates)}

    def evaluate(self):
        return {"score": self.scores[self.updates - 1]} if self.scores else {}

    def state_dict(self):
        return {"points": self.points.get_state(), "updates": self.updates}

    def load_state_dict(self, state):
        self.points.set_state(state["points"])
        self.updates = state["updates"]


def config(output, **settings):
    defaults = {
        **{"batch_size": 2, "accumulated_batch_size": 4, "max_steps": 12, "warmup_steps": 3},
        **{"learning_rate": 0.05, "log_steps": 1, "save_steps": 4, "eval_steps": 1},
        **{"device": "cpu", "trackers": (), "quiet": True},
    }
    return TrainingConfig(output=output, **{**defaults, **settings})


def train(settings, objective):
    processes = Processes(settings, settings.output / "training")
    states = States(settings.output, processes)
    asked = {name: plain(value) for name, value in vars(settings).items()}
    states.check(asked, resume=settings.resume)
    states.begin(asked, resume=settings.resume)
    trainer = Trainer(settings, objective, processes, states)
    return trainer.run(), trainer, states


def logged(folder):
    lines = (folder / "training" / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def without_speed(lines):
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


@pytest.mark.parametrize("log_steps", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, optimizer, log_steps):
    decay = {"log_steps": log_steps} | ({"weight_decay": 0.1} if optimizer == "adamw" else {})
    whole = Regression()
    train(config(tmp_path / "a", optimizer=optimizer, **decay), whole)
    with pytest.raises(UserError):  # dies in step 6; there is a state of step 4
        train(config(tmp_path / "b", optimizer=optimizer, **decay), Regression(broken_at=6))
    again = Regression()
    torch.manual_seed(99)  # whatever happened in between
    train(config(tmp_path / "b", optimizer=optimizer, resume=True, **decay), again)
    for name, weight in whole.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[name])
    assert without_speed(logged(tmp_path / "a")) == without_speed(logged(tmp_path / "b"))


def test_what_a_dead_attempt_left_is_cleared(tmp_path):
    with pytest.raises(UserError):
        train(config(tmp_path), Regression(broken_at=1))
    stale = tmp_path / "training" / "census.json"
    stale.write_text("{}")
    train(config(tmp_path, max_steps=1), Regression())
    assert not stale.exists()


def test_weights_that_are_no_numbers_are_not_kept(tmp_path):
    class Broken(Regression):
        def updated(self):
            super().updated()
            if self.updates == 8:
                self.module[0].weight.data[0, 0] = float("nan")

    with pytest.raises(UserError, match=r"step 8: the update is no number; .* step 4 is kept"):
        train(config(tmp_path), Broken())
    assert sorted(p.name for p in (tmp_path / "training").glob("step-*")) == ["step-00000004"]


def test_what_cannot_be_drawn_ends_a_run_with_the_state_of_the_last_update(tmp_path):
    class Unreadable(Regression):
        def draw(self, passes):
            if self.updates == 6:
                raise UserError("en.jsonl:9: not JSON")

    whole, again = Regression(), Regression()
    train(config(tmp_path / "a"), whole)
    says = "^en.jsonl:9: not JSON; the state of step 6 is kept: mend that, and go on with --resume$"
    for resume in (False, True):  # and it stays as it is when nothing was mended
        with pytest.raises(UserError, match=says):
            train(config(tmp_path / "b", resume=resume), Unreadable())
    train(config(tmp_path / "b", resume=True), again)
    for name, weight in whole.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[name])


def test_what_cannot_be_drawn_at_all_leaves_no_state(tmp_path):
    class Unreadable(Regression):
        def draw(self, passes):
            raise UserError("en.jsonl:9: not JSON")

    with pytest.raises(UserError, match=r"not JSON$"):
        train(config(tmp_path), Unreadable())
    assert not list((tmp_path / "training").glob("step-*"))


def test_a_resumed_run_learns_at_the_rates_that_are_asked_for_now(tmp_path):
    # after step 4: warm-up over 7, so that the update of step 5 is at 5/8 of the rate; Adam's
    # steps are proportional to the rate, and the state of both runs is the same.
    class Parted(Regression):
        def __init__(self, rate):
            super().__init__()
            self.rate = rate

        def rates(self):
            return {"2.": self.rate}

    train(config(tmp_path / "a", max_steps=4), Parted(0.1))
    kept = torch.load(tmp_path / "a/training/step-00000004/common.pt", weights_only=True)["module"]
    moved = []
    for number, (rate, own) in enumerate(((0.05, 0.1), (0.01, 0.3))):
        output = tmp_path / str(number)
        shutil.copytree(tmp_path / "a", output)
        objective = Parted(own)
        settings = {"learning_rate": rate, "warmup_steps": 7, "max_steps": 5, "resume": True}
        train(config(output, **settings), objective)
        after = objective.module.state_dict()
        moved.append({name: after[name] - kept[name] for name in after})
        assert logged(output)[-1]["learning_rate"] == pytest.approx(rate * 6 / 8)
    for name in kept:
        ratio = 0.3 / 0.1 if name.startswith("2.") else 0.01 / 0.05
        torch.testing.assert_close(moved[1][name], moved[0][name] * ratio, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("part", ["progress", "module", "optimizer", "schedule"])
@pytest.mark.parametrize("value", [None, {}, {"x": 1}])
def test_a_state_that_lacks_a_part_is_called_damaged(tmp_path, part, value):
    train(config(tmp_path, max_steps=4), Regression())
    path = tmp_path / "training/step-00000004/common.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, part: value}, path)
    with pytest.raises(UserError, match=r"step-00000004: cannot be read \(.*no other state is"):
        train(config(tmp_path, resume=True), Regression())


def test_fewer_steps_than_were_taken_are_refused(tmp_path):
    train(config(tmp_path, max_steps=4), Regression())
    with pytest.raises(UserError, match="--max-steps 2: the run is at step 4 already"):
        train(config(tmp_path, max_steps=2, resume=True), Regression())
    progress, _, _ = train(config(tmp_path, max_steps=4, resume=True), Regression())
    assert progress.step == 4  # a finished run is simply finished


def test_what_was_logged_after_the_state_is_forgotten_on_resume(tmp_path):
    train(config(tmp_path, max_steps=4), Regression())
    with (tmp_path / "training" / "log.jsonl").open("a") as stream:
        stream.write('{"step": 5, "squares": 0.0}\n{"step": 6, "squ')
    train(config(tmp_path, max_steps=6, resume=True), Regression())
    assert [line["step"] for line in logged(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_accumulated_gradients_are_those_of_the_batches_together(tmp_path):
    class Points(Objective):
        """Fixed points; no dropout."""

        def __init__(self, size):
            torch.manual_seed(0)
            self.module = nn.Linear(3, 1)
            self.x, self.size, self.at = torch.randn(8, 3), size, 0

        def draw(self, passes):
            pass

        def loss(self, module):
            x = self.x[self.at : self.at + self.size]
            self.at += self.size
            return Loss(module(x).square().mean(), "l", 1, "")

        def updated(self):
            pass

        def measures(self):
            return {}

        def evaluate(self):
            return {}

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    weights = []
    for size in (8, 2):
        settings = config(
            tmp_path / str(size), batch_size=size, accumulated_batch_size=8, max_steps=1
        )
        objective = Points(size)
        train(settings, objective)
        weights.append(objective.module.weight.detach().clone())
    torch.testing.assert_close(*weights, atol=1e-7, rtol=1e-6)


def test_the_rate_rises_and_then_stays_or_falls(tmp_path):
    # warm-up over 3: 1/4, 2/4, 3/4, then 1; linear: (10 - step) / (10 - 3) from step 3 on
    rates = {}
    for schedule in ("constant", "linear"):
        settings = config(
            tmp_path / schedule, schedule=schedule, max_steps=10, learning_rate=1.0, clip=0.01
        )
        train(settings, Regression())
        # the rate that is logged is the one of the next update
        rates[schedule] = [line["learning_rate"] for line in logged(settings.output)]
    assert rates["constant"] == [0.5, 0.75, *[1.0] * 8]
    falling = [(10 - step) / 7 for step in range(3, 11)]
    assert rates["linear"] == pytest.approx([0.5, 0.75, *falling])


def test_parts_may_have_a_rate_of_their_own_that_follows_the_schedule(tmp_path):
    # Adam's first update is the rate times the sign of the gradient; warm-up over 3: a quarter.
    class Parted(Regression):
        def rates(self):
            return {"2.": 0.5}

    objective = Parted()
    before = {name: p.detach().clone() for name, p in objective.module.named_parameters()}
    train(config(tmp_path, max_steps=1, learning_rate=0.1), objective)
    for name, rate in (("0.bias", 0.1), ("2.bias", 0.5)):
        moved = (objective.module.get_parameter(name) - before[name]).abs().max().item()
        assert moved == pytest.approx(rate / 4, rel=1e-3)


def test_the_gradient_is_clipped_before_each_update(tmp_path):
    lengths = []

    class Steep(Regression):
        def loss(self, module):
            return super().loss(module)._replace(value=1000 * module(torch.ones(1, 4)).sum())

        def watch(self, *_):
            grads = [p.grad for p in self.module.parameters()]
            lengths.append(torch.stack([grad.norm() for grad in grads]).norm().item())

    for clip in (0.5, 0.0):
        objective = Steep()
        settings = config(tmp_path / str(clip), max_steps=2, clip=clip)
        processes = Processes(settings, settings.output / "training")
        states = States(settings.output, processes)
        states.begin({}, resume=False)
        trainer = Trainer(settings, objective, processes, states)
        trainer.optimizer.optimizer.register_step_pre_hook(objective.watch)
        trainer.run()
    assert lengths[:2] == pytest.approx([0.5, 0.5])
    assert min(lengths[2:]) > 100


def test_dropout_is_on_in_every_update_and_off_in_evaluation(tmp_path):
    modes = []

    class Seen(Regression):
        def loss(self, module):
            modes.append(self.module.training)
            return super().loss(module)

        def evaluate(self):
            modes.append(self.module.training)
            return super().evaluate()

    objective = Seen([0.1, 0.2, 0.3])
    objective.module.eval()  # as from_pretrained gives it
    train(config(tmp_path, max_steps=2, eval_steps=1), objective)
    assert modes == [True, True, False, True, True, False]


def test_a_loss_that_is_no_number_stops_with_step_and_batch_and_keeps_the_state(tmp_path):
    with pytest.raises(UserError, match=r"step 7: the loss is no number \(batch 13\).*step 4"):
        train(config(tmp_path), Regression(broken_at=7))
    assert (tmp_path / "training" / "step-00000004").is_dir()
    good = Regression()
    progress, _, _ = train(config(tmp_path, resume=True), good)
    assert progress.step == 12


def test_the_newest_and_the_best_state_are_kept(tmp_path):
    scores = [0.1, 0.2, 0.9, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3]
    progress, _, states = train(config(tmp_path), Regression(scores))
    assert (progress.best, progress.best_step) == (0.9, 3)
    assert states.newest() == 12
    kept = sorted(path.name for path in (tmp_path / "training").glob("step-*"))
    assert kept == ["step-00000003", "step-00000012"]


def test_time_ends_a_run_with_a_state(tmp_path):
    progress, _, states = train(config(tmp_path, max_minutes=1e-6, save_steps=1000), Regression())
    assert progress.step == 1
    assert states.newest() == 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seed": 4}, r"--seed: the run in .* was begun with 0, not with 4"),
        ({"optimizer": "adamw"}, "--optimizer: the run"),
    ],
)
def test_another_setting_is_refused_on_resume(tmp_path, changed, says):
    train(config(tmp_path, max_steps=4), Regression())
    with pytest.raises(UserError, match=says):
        train(config(tmp_path, resume=True, **changed), Regression())


def test_a_run_is_not_begun_over_another_nor_resumed_from_nothing(tmp_path):
    with pytest.raises(UserError, match="holds no run to resume; leave --resume out"):
        train(config(tmp_path / "none", resume=True), Regression())
    train(config(tmp_path, max_steps=4), Regression())
    with pytest.raises(UserError, match="holds a run up to step 4; add --resume"):
        train(config(tmp_path), Regression())


def test_a_state_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    train(config(tmp_path, max_steps=4), Regression())
    before = {p.name: p.read_bytes() for p in (tmp_path / "training/step-00000004").iterdir()}

    def full(state, stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        train(config(tmp_path, resume=True), Regression())
    monkeypatch.undo()
    names = [path.name for path in (tmp_path / "training").glob("step-*")]
    assert names == ["step-00000004"]
    after = {p.name: p.read_bytes() for p in (tmp_path / "training/step-00000004").iterdir()}
    assert after == before


def test_a_state_half_written_by_a_kill_is_no_state(tmp_path):
    train(config(tmp_path, max_steps=4), Regression())
    half = tmp_path / "training" / "step-00000008.partial"
    half.mkdir()
    (half / "common.pt").write_bytes(b"PK")
    progress, _, _ = train(config(tmp_path, resume=True), Regression())
    assert progress.step == 12
    assert not half.exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 3}, "must be a multiple of --batch-size 3"),
        ({"weight_decay": 0.1}, "--weight-decay needs --optimizer adamw"),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0"),
        ({"clip": -1.0}, "--clip must be 0 or more"),
        ({"max_minutes": 0.0}, "--max-minutes must be above 0"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'"),
        ({"trackers": ("tensorbord",)}, "unknown tracker 'tensorbord'; did you mean"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(tmp_path, settings, says):
    with pytest.raises(UserError, match=says):
        config(tmp_path, **settings)


def test_devices_and_precisions_that_cannot_train_are_refused(tmp_path):
    for settings, says in (
        ({"device": "mps"}, "training runs on cpu or cuda"),
        ({"dtype": "float16"}, "float16 trains on a GPU only"),
    ):
        with pytest.raises(UserError, match=says):
            Processes(config(tmp_path, **settings), tmp_path)


# -- what the first process does for all --


def led(*, first, fails=False):
    """Call lead in one of two processes; what was done, and the error."""
    done = []

    def work():
        done.append(1)
        if fails:
            raise UserError("train.json, record 3: not JSON")

    here = SimpleNamespace(first=first, any=lambda flag: flag or fails)  # as reduced over both
    try:
        Processes.lead(here, work)
    except UserError as error:
        return done, str(error)
    return done, None


def test_what_is_done_once_is_done_by_the_first_process_and_fails_in_all():
    assert led(first=True) == ([1], None)
    assert led(first=False) == ([], None)
    assert led(first=True, fails=True) == ([1], "train.json, record 3: not JSON")
    assert led(first=False, fails=True) == ([], "the first process stopped; its message says why")
