"""What a case does besides its answer: which files it writes, and whether it reaches lowering.

`Monitor` watches one case at a time in a process of its own, because an audit hook cannot be
removed.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

__all__ = ["Monitor"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events that change files, and the indices of their paths.
_CHANGES = {
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "shutil.rmtree": (0,),
}
#: Beginnings of names that onnxruntime and PyTorch keep in the folder for temporary files.
_LIBRARY_TEMPORARIES = (".ses", "torchinductor_")
#: Folders of devices and of the kernel's tables, which hold no file of a user: the name of a
#: process or thread is written to /proc/self/comm.
_NO_FILES = ("/dev", "/proc")
#: Options whose value is a file or folder to write.
_OUTPUT_OPTIONS = ("-o", "--save-plan", "--debug-dump", "--deploy", "--dump", "--report")


class Monitor:
    """Watches cases in this process.

    Attributes
    ----------
    stages
        What the current case has reached: "lowering", the choice of integer operators for a float
        graph, or "binding", that of the kernels for an integer graph.
    """

    def __init__(self, scratch):
        """Install the hooks; `scratch` becomes the folder for temporary files."""
        self.stages = set()
        self._folder = None
        self._violations = set()
        self._scratch = Path(scratch)
        self._scratch.mkdir()
        tempfile.tempdir = str(self._scratch)
        os.environ["TMPDIR"] = str(self._scratch)
        self._allowed = [os.path.realpath(path) for path in (self._scratch, *_cache_folders())]
        self._watch_stages()
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def watch(self, folder):
        """Watch a case in `folder`."""
        self.stages.clear()
        self._violations.clear()
        self._folder = os.path.realpath(folder)
        try:
            yield
        finally:
            self._folder = None

    def find_violation(self, case, folder):
        """Return a file that `case` wrote outside its targets; an empty text if there is none.

        Call it before the files of the case are removed.
        """
        names = (path.name for path in self._scratch.iterdir())
        left = [name for name in names if not name.startswith(_LIBRARY_TEMPORARIES)]
        if left:
            return f"temporary {min(left)} left behind"
        targets = {
            word
            for option, word in zip(case.call, case.call[1:], strict=False)
            if option in _OUTPUT_OPTIONS
        }
        outside = [path for path in self._violations if not _is_requested(path, targets, folder)]
        if outside:
            return f"wrote {min(outside)}"
        for name, content in case.files.items():
            path = Path(folder) / name
            is_target = any(
                name.startswith((f"{target}/", Path(target).stem or target)) for target in targets
            )
            if not is_target and not (path.is_file() and path.read_bytes() == content):
                return f"input {name} changed"
        return ""

    def _watch_stages(self):
        from lingeronnx.operators.lowering_context import LoweringContext
        from lingeronnx.runtime.integer.bind import Binder

        for owner, stage in ((LoweringContext, "lowering"), (Binder, "binding")):
            owner.run = self._record_stage(owner.run, stage)

    def _record_stage(self, function, stage):
        def run(*args, **options):
            self.stages.add(stage)
            return function(*args, **options)

        return run

    def _audit(self, event, args):
        if self._folder is None:
            return
        if event == "open":
            flags = args[2] if isinstance(args[2], int) else 0
            paths = [args[0]] if flags & _WRITING else []
        else:
            paths = [args[index] for index in _CHANGES.get(event, ()) if index < len(args)]
        if event == "os.mkdir" and os.path.isdir(args[0]):  # which fails, and changes nothing
            return
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                self._check(os.fsdecode(path))

    def _check(self, path):
        folder, self._folder = self._folder, None  # no audit of what follows
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError):
            return
        finally:
            self._folder = folder
        allowed = (folder, *self._allowed, *_NO_FILES)
        if not any(real == each or real.startswith(f"{each}/") for each in allowed):
            self._violations.add(real)


def _is_requested(path, targets, folder):
    """Whether `path` is a target outside `folder`, such as "../x", or lies in or beside one.

    Beside it are files and folders whose names begin with that of the target, also those under a
    temporary name, which begins with a dot.
    """
    for target in targets:
        real = Path(os.path.realpath(Path(folder) / target))
        if path == str(real):
            return True
        if real.stem and real.parent in Path(path).parents:
            first = Path(path).relative_to(real.parent).parts[0]
            if first.removeprefix(".").startswith(real.stem):
                return True
    return False


def _cache_folders():
    """Return the folders in which compiled code is cached."""
    names = ("LINGERONNX_CACHE_DIR", "XDG_CACHE_HOME")
    found = [os.environ[name] for name in names if os.environ.get(name)]
    return [*found, str(Path("~/.cache").expanduser())]
