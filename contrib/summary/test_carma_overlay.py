# SPDX-License-Identifier: Apache-2.0
"""A traced script harms no file: a folder is compared before and after scripts of every kind of writing."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import carma_trace  # noqa: E402

TRACER = os.path.join(HERE, "carma_trace.py")
TRACES = carma_trace.torch is not None and int(carma_trace.torch.__version__.split(".")[0]) >= 2

TRAIN = """
import os, sys, torch
model = torch.nn.Linear(100, 100).cuda()
opt = torch.optim.Adam(model.parameters())
def step():
    opt.zero_grad()
    model(torch.randn(8, 100).cuda()).sum().backward()
    opt.step()
step()
{}
step()
raise SystemExit("it went on")
"""

# What scripts do to files, and what they expect to find afterwards. The folder has best.pt ("a month"),
# log.txt ("one\n"), table.db, and runs/old/result.json.
WRITES = {
    "open, then torch.save": """
        with open("best.pt", "wb") as f: torch.save(model.state_dict(), f)
        assert torch.load("best.pt")["weight"].shape == (100, 100)""",
    "torch.save by name": """
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": 3}, "best.pt")
        seen = torch.load("best.pt", map_location="cpu")
        assert seen["epoch"] == 3
        model.load_state_dict(seen["model"]); opt.load_state_dict(seen["opt"])
        torch.save(model, "whole.pt"); torch.load("whole.pt", weights_only=False)""",
    "torch.save of data": """
        os.makedirs("processed"); torch.save([torch.arange(5), "x"], "processed/data.pt")
        assert torch.load("processed/data.pt")[0].tolist() == [0, 1, 2, 3, 4]""",
    "append": """
        with open("log.txt", "a") as f: f.write("two\\n")
        assert open("log.txt").read() == "one\\ntwo\\n" """,
    "update in place": """
        with open("log.txt", "r+b", buffering=0) as f: f.write(b"ONE")
        assert open("log.txt", "rb").read() == b"ONE\\n" """,
    "x": """
        try: open("log.txt", "x"); raise SystemExit(5)
        except FileExistsError: pass
        open("new.txt", "x").write("n")
        assert os.path.getsize("new.txt") == 1 and "new.txt" in os.listdir()""",
    "io and os": """
        import io
        io.open("best.pt", "w").close(); io.FileIO("log.txt", "w").close()
        fd = os.open("best.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(fd, b"12"); os.close(fd)
        assert os.stat("best.pt").st_size == 2 and os.path.getsize("log.txt") == 0""",
    "pathlib": """
        from pathlib import Path
        p = Path("runs") / "new" / "deep"
        p.mkdir(parents=True, exist_ok=True); p.mkdir(parents=True, exist_ok=True)
        (p / "a.txt").write_text("a"); Path("log.txt").write_bytes(b"z"); Path("best.pt").unlink()
        Path("log.txt").touch(); Path("touched").touch()
        assert not Path("best.pt").exists() and (p / "a.txt").read_text() == "a"
        assert sorted(q.name for q in Path("runs").iterdir()) == ["new", "old"]
        assert [q.name for q in Path(".").rglob("*.txt")].count("a.txt") == 1""",
    "json, pickle and csv": """
        import json, pickle, csv
        json.dump({"best": 1}, open("runs/old/result.json", "w"))
        assert json.load(open("runs/old/result.json")) == {"best": 1}
        with open("best.pt", "wb") as f: pickle.dump([1], f)
        csv.writer(open("log.txt", "w")).writerow([1, 2])""",
    "numpy": """
        import numpy as np
        np.save("best.npy", np.ones(3)); np.savez("best.npz", a=np.ones(2)); np.savetxt("log.txt", np.ones(2))
        m = np.memmap("best.pt", "uint8", "r+"); m[:] = 0; m.flush()
        np.memmap("big.bin", "uint8", "w+", shape=(1000,))[:] = 1; np.ones(4).tofile("table.db")
        assert np.load("best.npy").sum() == 3 and np.fromfile("table.db").size == 4""",
    "sqlite3": """
        import sqlite3
        db = sqlite3.connect("table.db"); db.execute("delete from t"); db.execute("insert into t values (7)")
        db.commit(); db.close()
        assert sqlite3.connect("file:table.db?mode=ro", uri=True).execute("select * from t").fetchall() == [(7,)]
        sqlite3.connect("other.db").execute("create table u (a)")""",
    "rename and replace": """
        os.rename("best.pt", "older.pt"); os.replace("log.txt", "table.db"); os.rename("runs/old", "runs/older")
        assert sorted(os.listdir()) == ["older.pt", "runs", "table.db", "train.py"], os.listdir()
        assert open("runs/older/result.json").read() == "{}" and open("table.db").read() == "one\\n" """,
    "a temporary name that is renamed": """
        import tempfile
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as f: f.write("new")
        os.replace(f.name, "best.pt")
        assert open("best.pt").read() == "new" """,
    "remove": """
        os.remove("best.pt"); os.unlink("log.txt")
        try: os.remove("best.pt"); raise SystemExit(5)
        except FileNotFoundError: pass
        open("best.pt", "w").write("again")
        assert not os.path.exists("log.txt") and open("best.pt").read() == "again" """,
    "shutil.rmtree": """
        import shutil
        shutil.rmtree("runs"); assert not os.path.exists("runs/old/result.json")
        os.makedirs("runs"); assert os.listdir("runs") == [] and [e.name for e in os.scandir("runs")] == []""",
    "shutil.copy, move and copytree": """
        import shutil
        shutil.copy("log.txt", "best.pt"); shutil.copytree("runs", "copies"); shutil.move("log.txt", "runs/old")
        assert open("copies/old/result.json").read() == "{}" and open("runs/old/log.txt").read() == "one\\n"
        assert open("best.pt").read() == "one\\n" and not os.path.exists("log.txt")
        assert {d for d, _, _ in os.walk("copies")} == {"copies", "copies/old"}""",
    "truncate": """
        os.truncate("best.pt", 2); assert open("best.pt").read() == "a "
        with open("log.txt", "r+") as f: f.truncate(0)""",
    "links": """
        os.symlink("best.pt", "last.pt"); open("last.pt", "w").write("by link")
        assert open("best.pt").read() == "by link" and os.readlink("last.pt") == "best.pt"
        os.link("log.txt", "hard.txt"); open("hard.txt", "w").write("x")""",
    "a link to what is kept": """
        os.symlink(os.path.abspath("runs/old"), "latest")
        open("latest/result.json", "w").write("[]")
        assert open("runs/old/result.json").read() == "[]" """,
    "modes and times": """
        os.chmod("best.pt", 0o600); os.utime("log.txt", (1, 1)); os.chmod("runs", 0o777)
        fd = os.open("best.pt", os.O_RDONLY); os.fchmod(fd, 0o777); os.close(fd)""",
    "another working directory": """
        os.makedirs("out/x"); os.chdir("out/x"); open("f", "w").write("1")
        assert os.getcwd().endswith("/out/x") and os.path.isfile("../x/f") and os.path.exists("../../log.txt")
        os.chdir("../../runs"); open("old/result.json", "w").close()""",
    "archives": """
        import tarfile, zipfile, gzip
        with tarfile.open("best.pt", "w:gz") as t: t.add("log.txt")
        with zipfile.ZipFile("log.txt", "w") as z: z.write("best.pt")
        with gzip.open("table.db", "wt") as g: g.write("x")
        tarfile.open("best.pt").extractall("unpacked", filter="data"); assert os.listdir("unpacked") == ["log.txt"]""",
    "logging": """
        import logging
        logging.basicConfig(filename="log.txt", level="INFO"); logging.info("three")
        assert open("log.txt").read().startswith("one\\nINFO")""",
    "temporary files": """
        import tempfile
        with tempfile.TemporaryDirectory() as d: open(d + "/a", "w").write("a"); assert os.listdir(d) == ["a"]
        assert not os.path.exists(d)
        with tempfile.TemporaryFile() as f: f.write(b"1")
        left = tempfile.mkdtemp(); open(left + "/left", "w").close()""",
    "tensorboard": """
        from torch.utils.tensorboard import SummaryWriter
        with SummaryWriter("runs/old") as w: assert not callable(w); w.add_scalar("loss", 1.0, 1)""",
    "a module that is written": """
        open("generated.py", "w").write("value = 7")
        sys.path.insert(0, os.getcwd()); import generated; assert generated.value == 7""",
    "a forked process": """
        pid = os.fork()
        if pid == 0:
            open("best.pt", "w").close(); os._exit(0)
        os.waitpid(pid, 0)""",
    "semaphores": """
        import multiprocessing
        lock = multiprocessing.Lock(); queue = multiprocessing.Queue()
        open("/dev/null", "w").write("x")""",
}

# Writes that no Python function does: the kernel refuses them.
FOREIGN = {
    "a program": """
        import subprocess
        subprocess.run("rm -rf best.pt log.txt; echo > table.db; mkdir made; chmod 777 runs", shell=True)
        os.system("echo > best.pt")""",
    "the C library": """
        import ctypes
        c = ctypes.CDLL(None)
        c.unlink(b"best.pt"); c.truncate(b"log.txt", 0); c.rename(b"table.db", b"x"); c.mkdir(b"made", 0o777)
        c.open(b"log.txt", os.O_WRONLY | os.O_TRUNC); c.open(b"made.txt", os.O_CREAT | os.O_WRONLY, 0o600)""",
    "a program in a new session": """
        import subprocess
        subprocess.Popen("sleep 1; echo > best.pt", shell=True, start_new_session=True)""",
    "a writer in C++": """
        w = torch._C.PyTorchFileWriter("best.pt")""",
}


def state(folder):
    """Names, contents, modes and times of all files of a folder."""
    found = {}
    for at, _, names in os.walk(folder):
        for path in [at] + [os.path.join(at, n) for n in names]:
            info = os.lstat(path)
            content = ""
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    content = hashlib.sha256(f.read()).hexdigest()
            found[os.path.relpath(path, folder)] = (content, info.st_mode, info.st_mtime_ns, info.st_ino)
    return found


@unittest.skipUnless(TRACES, "PyTorch 2 is not installed")
class Files(unittest.TestCase):
    def folder(self, code):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        work = holder.name
        at, tmp = os.path.join(work, "user"), os.path.join(work, "tmp")
        os.makedirs(os.path.join(at, "runs", "old"))
        os.mkdir(tmp)
        for name, content in (("best.pt", "a month"), ("log.txt", "one\n"), ("runs/old/result.json", "{}"),
                              ("train.py", TRAIN.format(textwrap.dedent(code)))):
            with open(os.path.join(at, name), "w", encoding="utf-8") as f:
                f.write(content)
        subprocess.run([sys.executable, "-c", "import sqlite3; d = sqlite3.connect('table.db'); "
                        "d.execute('create table t (a)'); d.execute('insert into t values (1)'); d.commit()"],
                       cwd=at, check=True)
        return at, tmp

    def trace(self, code, without=""):
        """One script; returns what it printed. The folder and the place of temporary files are as they were."""
        at, tmp = self.folder(code)
        before = state(at)
        command = [sys.executable, TRACER, "train.py"]
        if without:
            fails = "".join(f"carma_wall.{w} = fail; " for w in without.split())
            command[1:2] = ["-c", f"import sys; sys.path.insert(0, {HERE!r}); import carma_wall, carma_trace\n"
                            "def fail(*args): raise OSError('not here')\n" + fails + "carma_trace.main(sys.argv[1:])"]
        run = subprocess.run(command, cwd=at, env=dict(os.environ, TMPDIR=tmp), capture_output=True, text=True)
        time.sleep(1.5 if "sleep" in code else 0)
        self.assertEqual(state(at), before, run.stderr)
        self.assertEqual(os.listdir(tmp), [], "left in TMPDIR")
        return run

    def test_no_file_is_harmed(self):
        for kind, code in WRITES.items():
            with self.subTest(kind):
                run = self.trace(code)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn("#CARMA| end\n", run.stdout)

    def test_nor_by_others(self):
        for kind, code in FOREIGN.items():
            for without in ("", "namespace", "landlock") if kind in ("a program", "the C library") else ("",):
                if "chmod" in code and without == "namespace":
                    code = code.replace("; chmod 777 runs", "")  # Landlock knows no right to change a mode
                with self.subTest(kind, without=without):
                    self.trace(code, without)

    def test_without_walls(self):
        for kind in ("torch.save by name", "sqlite3", "rename and replace"):
            with self.subTest(kind):
                run = self.trace(WRITES[kind], "namespace landlock")
                self.assertEqual(run.returncode, 0, run.stderr)
        for kind in ("a program", "a program in a new session"):
            run = self.trace(FOREIGN[kind], "namespace landlock")
            self.assertEqual(run.returncode, 1)
            self.assertIn("starts another program", run.stderr)

    def test_says_what_was_refused(self):
        run = self.trace(FOREIGN["a writer in C++"])
        self.assertEqual(run.returncode, 1)
        self.assertIn("a trace changes no file", run.stderr)

    def test_nothing_stays_after_a_failure(self):
        for code in ("1 / 0", "open('/no/such/file')", "os._exit(3)", "os.kill(os.getpid(), 9)"):
            self.assertEqual(self.trace(f"open('a', 'w').close()\n{code}").returncode, 1)

    def test_nothing_stays_after_a_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            at, tmp = self.folder("import time, subprocess\nopen('best.pt', 'w').close()\n"
                                  "print('ready', flush=True)\nsubprocess.run(['sleep', '60.125'])")
            before = state(at)
            run = subprocess.Popen([sys.executable, TRACER, "train.py"], cwd=at, env=dict(os.environ, TMPDIR=tmp),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            self.assertEqual(run.stderr.readline(), "ready\n")
            run.send_signal(number)
            run.communicate(timeout=60)
            self.assertNotEqual(run.returncode, 0)
            self.assertEqual((state(at), os.listdir(tmp)), (before, []))
            found = subprocess.run(["pgrep", "-f", "^sleep 60.125"], capture_output=True, text=True)
            self.assertEqual(found.stdout, "")

    def test_nothing_stays_after_a_signal_at_the_fork(self):
        """A signal may come before the tracer knows the number of its child."""
        code = """
            import subprocess, sys
            sys.path.insert(0, sys.argv[1])
            import carma_command, carma_script
            def forked(*args):
                subprocess.Popen(["sleep", "60.25"])
                raise KeyboardInterrupt
            carma_script.forked = forked
            carma_script.apart(carma_command.Command("train.py"), [])"""
        run = subprocess.run([sys.executable, "-c", textwrap.dedent(code), HERE], capture_output=True, text=True,
                             timeout=50)
        self.assertIn("KeyboardInterrupt", run.stderr)

    def test_trackers_are_off(self):
        for name in ("mlflow", "wandb"):
            at, tmp = self.folder("import tracker\ntracker.init(project='p', mode='online')\n".replace("tracker", name))
            os.mkdir(os.path.join(at, name))
            with open(os.path.join(at, name, "__init__.py"), "w", encoding="utf-8") as f:
                f.write("def init(mode=None, **kwargs):\n    assert mode == 'disabled'\n")
            run = subprocess.run([sys.executable, TRACER, "train.py"], cwd=at, env=dict(os.environ, TMPDIR=tmp),
                                 capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)

    def test_classes_of_trackers(self):
        code = """import sys; sys.path.insert(0, sys.argv[1])
        import types, carma_trackers
        clearml = types.ModuleType("clearml")
        carma_trackers.Finder().exec_module(clearml)
        task = clearml.Task.init(project_name="p")
        assert str(task.get_logger()) == "" and not callable(clearml.Task("x"))
        class Mine(clearml.Task): pass
        Mine().log(1)"""
        run = subprocess.run([sys.executable, "-c", textwrap.dedent("        " + code), HERE], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    unittest.main()
