"""Run a trial for outputs at any distance from the float model, or for none."""

from lingeronnx.quantization.trials.requirements import require_low_sqnr


def set_sqnr_limit(monkeypatch, trial, limit_db):
    """Replace the limit below which an output must be for `trial` to apply."""
    limit = require_low_sqnr(limit_db)
    start, _, _ = limit.description.partition(" below ")
    requirements = [
        limit if requirement.description.startswith(start) else requirement
        for requirement in trial.requirements
    ]
    assert limit in requirements
    monkeypatch.setattr(trial, "requirements", requirements)
