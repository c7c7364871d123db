# SPDX-License-Identifier: Apache-2.0
"""A script in a process of its own, which changes no file. A part of carma_trace.py."""

import contextlib
import errno
import json
import os
import re
import runpy
import shutil
import signal
import stat
import sys
import tempfile
import traceback

import carma_overlay
import carma_trackers
import carma_wall
from carma_patches import Tracing
from carma_recorder import Done, Refused, torch

MOST_ANSWER = 512 << 20  # bytes of what the script's process has recorded


def run(command, argv):
    """Runs a program as Python would."""
    if command.module:
        sys.argv = [command.module, *argv]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
        return
    sys.argv = [command.script, *argv]
    sys.path.insert(0, os.path.dirname(os.path.abspath(command.script)))
    runpy.run_path(command.script, run_name="__main__")


def caught(command, argv, loader_batch=None, overlay=None, any_is=True):
    """Run a program until its second step and return what it allocated."""
    import carma_checkpoint
    script = command.module or command.script
    tracing = Tracing(loader_batch)
    tracing.recorder.any_is = any_is
    done = False
    try:
        with tracing:
            tracing.script()
            carma_checkpoint.put(tracing, overlay)
            with contextlib.redirect_stdout(sys.stderr):
                run(command, argv)
    except Done:
        done = True
    except Refused as err:
        at = place_of(err)
        raise Refused(f"{script}:{at}{':' * bool(at)} {err}") from err
    except SystemExit as err:
        if err.code not in (None, 0):
            raise Refused(f"{script}: it ended with {err.code!r} before its second step") from err
    except carma_overlay.TooLarge as err:
        raise Refused(f"{script}: {err.strerror}: {err.filename}") from err
    except FileNotFoundError as err:
        raise Refused(f"{script}: it reads {err.filename or err}, which is not here: run it where the data are, "
                      "with a few samples in their place, or call carma_trace.show()") from err
    except Exception as err:
        compiled = re.search(r"no rule registered for HOP (\w{1,60})", str(err))  # an operation that takes a program
        if compiled and isinstance(err, NotImplementedError):
            at = place_of(err)
            raise Refused(f"{script}:{at}{':' * bool(at)} {compiled[1]} cannot be traced: give mem= instead") from err
        said = " ".join(str(err).split())[:300].rstrip(". ")
        said = f"{type(err).__name__}{': ' * bool(said)}{said}{walled(err)}"
        refused = Refused(f"{script}: it stopped{place_of(err)}: {said}: "
                          "call carma_trace.show() with the model, or give mem=")
        refused.asked = tracing.recorder.asked
        raise refused from err
    r = tracing.recorder
    if r.steps == 0:
        loop = ": its loop has no such optimizer" if r.backwards else ""
        raise Refused(f"{script}: it ended without a step of a torch.optim optimizer{loop}: nothing was traced")
    if not any(e[0] == "+" for e in r.events):
        raise Refused(f"{script}: it put nothing on a GPU: nothing was traced; see its options for the device")
    if r.asked and not any_is:
        r.note("values read from any(): false was taken")
    if not done:
        r.note("the script ended after its first step")
    return tracing.result()


def place_of(err):
    """File and line of the user's own code at which an error arose."""
    libraries = (os.path.dirname(os.path.realpath(__file__)), os.path.dirname(os.__file__),
                 os.path.dirname(torch.__file__), os.path.realpath("<"))
    own = [f for f in traceback.extract_tb(err.__traceback__) if not os.path.realpath(f.filename).startswith(libraries)
           and "site-packages" not in f.filename and "dist-packages" not in f.filename]
    return f" in {os.path.relpath(own[-1].filename)}, line {own[-1].lineno}" if own else ""


def walled(err):
    """What to say of an error that comes from a write that the kernel refused."""
    if getattr(err, "errno", None) in (errno.EROFS, errno.EACCES, errno.EPERM) or any(
            words in str(err) for words in ("Read-only file system", "Permission denied", "cannot be opened")):
        return (" (a trace changes no file: a library or a program that the script uses wrote one itself, "
                "which no overlay can take)")
    return ""


def alone(*args):
    raise Refused("the script starts another program, and this kernel has neither namespaces nor Landlock "
                  "to keep your files from that program: leave it out, or give mem=")


def guarded(folder):
    """The overlay of a script's process, with what walls the kernel has around that process."""
    carma_wall.dies_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nobody answers a question
    os.dup2(2, 1)  # what C libraries and programs print is no part of the trace
    if not carma_wall.build(folder):
        programs = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"}
        sys.addaudithook(lambda event, args: alone() if event in programs else None)
        import multiprocessing.util
        multiprocessing.util.spawnv_passfds = alone  # which tells no audit hook
    carma_trackers.off()
    return carma_overlay.Overlay(folder)


def ended(number, frame):
    raise SystemExit(128 + number)


def apart(command, argv, loader_batch=None, any_is=True):
    """caught() in a process of its own, for a script leaves its marks; they go with the overlay's folder."""
    carma_wall.adopts_orphans()
    folder = os.path.realpath(tempfile.mkdtemp(prefix="carma-trace."))
    old = [(n, signal.signal(n, ended)) for n in (signal.SIGTERM, signal.SIGHUP)]
    child = 0
    try:
        with tempfile.TemporaryFile() as answer:
            child = forked(command, argv, loader_batch, folder, answer, any_is)
            _, status = os.waitpid(child, 0)
            if status != 0:
                raise Refused(f"{command.module or command.script}: its process ended with status {status}: see above")
            answer.seek(0)
            result = json.loads(answer.read(MOST_ANSWER))
    finally:
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        carma_wall.end_children()  # also those in sessions of their own, and one whose number is not known yet
        remove(folder)
        for n, handler in old:
            signal.signal(n, handler)
    if "refused" in result:
        if any_is and result["asked"]:  # a script that checks its data may have found them wrong
            return apart(command, argv, loader_batch, False)
        raise Refused(result["refused"].replace(os.path.join(folder, "upper"), ""))
    result["kinds"] = {int(number): kind for number, kind in result["kinds"].items()}
    return result


def remove(folder):
    """Removes a folder, also where the script has made folders that cannot be written."""
    for at, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(at, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def forked(command, argv, loader_batch, folder, answer, any_is):
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    status = 1
    try:
        for n in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(n, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        before = os.environ.get("PYTHONPATH")
        os.environ.update(command.env)
        os.environ["SLURM_CONF"] = os.devnull  # sbatch and srun find no cluster
        if command.cwd:
            os.chdir(command.cwd)
        if os.environ.get("PYTHONPATH") != before:  # this Python has started without it
            sys.path[:0] = [os.path.abspath(path) for path in os.environ["PYTHONPATH"].split(os.pathsep) if path]
        with guarded(folder) as overlay:
            result = caught(command, argv, loader_batch, overlay, any_is)
        answer.write(json.dumps(result).encode())
        status = 0
    except Refused as err:
        answer.write(json.dumps({"refused": str(err), "asked": getattr(err, "asked", False)}).encode())
        status = 0
    except BaseException:  # noqa: B036 - the child must not go on as the parent
        traceback.print_exc()
    finally:
        answer.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
