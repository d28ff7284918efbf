"""Follow the lines of a sink's own code, and let a start die so that none of that code runs any more.

A killed process runs no ``except``, no ``finally`` and no clean-up, but an exception runs all of them.  So after a
start has died, and until its method is left, each further step of the sink's code dies, too: a line, a call, or a
generator that is closed.  Python removes a trace function after it raises, and a profile function, too, but not both at
once.  Therefore each of the two functions sets the other one again before it raises.

What libraries do at the end of a ``with`` still happens: a connection rolls back and closes.  A server does the same
with the connection of a process that is gone.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from epochal.chaos.simulate.pipelines import SimulatedCrash

OURS = "epochal"  # the project's sinks share files with servers in memory, so only their classes count
KIT = {str(file) for file in Path(__file__).parent.glob("*.py")}  # this code calls the methods
INSTALLED = ("site-packages", "dist-packages")


class Lines:
    """Traces one call of a sink's method.

    At each line of the sink's code it calls ``tell(place, called back)``, which may raise ``SimulatedCrash``.  "Called
    back" means that other code called the sink's code.  That code may hold a lock that all starts in this process
    share.
    """

    def __init__(self, kind: type, tell: Callable[[str, bool], None] | None) -> None:
        self._kind = kind
        self._codes = _codes(kind)
        self._tell = tell
        self._dead = False
        self._bottom: FrameType | None = None  # the caller of the method; paused older starts may be further down
        self._after = contextlib.ExitStack()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Trace the code in this context.  After it, a debugger or coverage is active again."""
        self._bottom = sys._getframe(2)  # frame 1 is that of contextlib
        if gc.isenabled():
            gc.disable()  # so the method's objects stay in the youngest generation, which is collected quickly
            self._after.callback(gc.enable)
        self._after.callback(sys.settrace, sys.gettrace())
        sys.settrace(self._step)
        with self._after:
            try:
                yield
            except BaseException as error:
                if self._dead:
                    _forget(error)  # this must happen while code that it closes still dies, too
                raise
            finally:
                died, self._dead, self._bottom = self._dead, False, None
                if died:
                    raise SimulatedCrash  # even if the sink caught or replaced it

    def _own(self, frame: FrameType | None) -> bool:
        if frame is None:
            return False
        code = frame.f_code
        return _belongs(self._kind, code.co_filename) or bool(self._codes and code in self._codes)

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The trace function."""
        if self._dead:
            sys.setprofile(self._call)
        if not self._own(frame):
            return None
        if self._dead:
            begins = event == "call" and not _generates(frame)
            if begins or (event == "line" and frame.f_lineno not in _withs(frame.f_code.co_filename)):
                raise _death(frame)
        elif event == "line" and self._tell is not None:
            try:
                self._tell(f"{_name(frame.f_code.co_filename)}:{frame.f_lineno}", self._called_back(frame))
            except SimulatedCrash:
                self._die()
                raise
        elif event == "exception" and issubclass(argument[0], SimulatedCrash):  # raised between rows or at a failpoint
            self._die()
        return self._step

    def _called_back(self, frame: FrameType) -> bool:
        above = frame.f_back
        while above is not None and above is not self._bottom and above.f_code.co_filename not in KIT:
            if above.f_code.co_filename != contextlib.__file__ and not self._own(above):
                return True
            above = above.f_back
        return False

    def _call(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG002
        """The profile function, which is used after the start has died."""
        if not self._dead or event not in ("call", "c_call", "return"):
            return
        above: FrameType | None = frame
        while above is not None and above is not self._bottom:
            if self._own(above):
                above.f_trace = self._step
            above = above.f_back
        sys.settrace(self._step)
        if event == "c_call":
            dies = self._own(frame)
        else:
            calls = self._own(frame) or (self._own(frame.f_back) and not _leaves(frame))
            dies = event == "call" and calls and not _generates(frame)
        if dies:
            raise _death(frame)

    def _die(self) -> None:
        if self._dead:
            return
        self._dead = True
        self._after.callback(sys.setprofile, sys.getprofile())
        # What the dead code left open is closed by the garbage collector.  That must cause no warnings.
        self._after.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ResourceWarning)
        self._after.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = bool  # prints nothing, and has no frame that could be mistaken for the sink's
        sys.setprofile(self._call)


def _leaves(frame: FrameType) -> bool:
    """Whether the frame is a library's ``__exit__``.  An ExitStack does not count, as it would call the sink's code."""
    return frame.f_code.co_name == "__exit__" and not isinstance(frame.f_locals.get("self"), contextlib.ExitStack)


def _death(frame: FrameType) -> BaseException:
    """The exception that ends this frame.  A generator that is being closed ends silently only with GeneratorExit."""
    return GeneratorExit() if _generates(frame) else SimulatedCrash()


def _generates(frame: FrameType) -> bool:
    """Whether the frame is a generator's.  It must die at a line: if it dies when it is entered, it is never freed."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def _forget(error: BaseException | None) -> None:
    """Free everything that the frames of the error's traceback hold."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None  # a traced frame keeps a copy of its locals
        error = error.__context__
    gc.collect(0)


_name = functools.cache(os.path.basename)


@functools.cache
def _belongs(kind: type, filename: str) -> bool:
    """Whether a file belongs to the package, or to the folder of modules, of the class or of a base class."""
    file = Path(filename)
    return any(_contains(home, file) for home in _homes(kind)) and file.suffix == ".py"


def _contains(home: Path, file: Path) -> bool:
    if home.suffix == ".py":  # a module without a package: other modules beside it count, too, unless they are tests
        test = file.name.startswith(("test_", "conftest")) or file.stem.endswith("_test")
        return file == home or (file.parent == home.parent and home.parent.name not in INSTALLED and not test)
    return home in file.parents and not set(INSTALLED) & set(file.relative_to(home).parts)


@functools.cache
def _homes(kind: type) -> tuple[Path, ...]:
    """The folders of the packages of a class and its base classes, or the files of modules without a package."""
    homes: set[Path] = set()
    for base in kind.__mro__:
        top = base.__module__.partition(".")[0]
        if top == OURS or top in sys.stdlib_module_names:
            continue
        package = getattr(sys.modules.get(top), "__path__", None)
        own = getattr(sys.modules.get(base.__module__), "__file__", None)
        homes.update(Path(folder) for folder in package or ())
        if own is not None:
            homes.add(Path(own))
    return tuple(homes)


@functools.cache
def _codes(kind: type) -> frozenset[CodeType]:
    """The code objects of methods that a class inherits from the project's classes, with functions inside them."""
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == OURS or not _homes(base)]
    bases = [base for base in bases if base.__module__.partition(".")[0] not in sys.stdlib_module_names]
    found = [getattr(inspect.unwrap(_function(member)), "__code__", None) for b in bases for member in vars(b).values()]
    return frozenset(code for outer in found if outer is not None for code in _nested(outer))


def _function(member: Any) -> Any:
    """The function behind a member of a class, such as a property or a class method."""
    return getattr(member, "fget", None) or getattr(member, "__func__", None) or member


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


@functools.cache
def _withs(filename: str) -> frozenset[int]:
    """The lines of the heads of a file's ``with`` statements.  Python is at these lines also when it leaves one."""
    try:
        tree = ast.parse(Path(filename).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return frozenset()
    found = (node for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith)))
    return frozenset(line for node in found for line in range(node.lineno, node.body[0].lineno))
