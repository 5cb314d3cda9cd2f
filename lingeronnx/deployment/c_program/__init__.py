"""The C program of a deployed model.

Chip parts called through the executor, host parts, borders and states.
    program    what it does, as values: buffers, steps, memory     host       host parts as C, by
    emx-onnx-cgen source     its files, from `templates/`                        packages   the
    header in front of each package golden     one call as C arrays, for `model_self_test`
    build      compiling it on a PC attempt    the proof on a PC against the stand-in executor

Must not know: commands, torch.
"""
