# SPDX-License-Identifier: Apache-2.0
"""Which Python program a command runs: as it is typed, behind launchers, or in a batch script.

A batch script is read and not run: variables, cd, source of a virtual
environment and the commands are followed; values that are known only within the
job ($(...), arrays) are not, and a program that needs one is refused. Its launcher
may need one.
"""

import glob
import os
import re
import shlex

# What torchrun tells a script of one process. A script that finds them takes itself for one of several.
LAUNCHER = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "1", "SLURM_NPROCS": "1",
         "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_ID": "1",
         "SLURM_JOBID": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_NODELIST": "localhost",
         "SLURM_CPUS_PER_TASK": "1", "SLURM_GPUS_ON_NODE": "1", "SLURM_ARRAY_TASK_ID": "0"}
PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
VALUED = ("-W", "-X")  # options of python with a word behind them
WRAPPERS = frozenset(("srun", "mpirun", "mpiexec", "env", "exec", "time", "nice", "nohup", "timeout", "numactl",
                      "stdbuf", "ionice", "taskset", "command", "catchsegv", "xvfb-run", "uv", "poetry"))
RUNNERS = ("uv", "poetry")  # of run alone
WITH_NAME = ("--with", "--extra", "--group", "--package", "--python", "-p")  # options of theirs with a name behind
SHELLS = frozenset(("bash", "sh"))
HIDDEN = re.compile("\ue000(\\d+)\ue001")  # stands for a value that only the job knows
CONTAINERS = frozenset(("apptainer", "singularity", "docker", "podman", "enroot", "shifter", "ch-run"))
LAUNCHERS = frozenset(("torchrun", "accelerate", "deepspeed"))
MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torch.distributed.launch",
           "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed"}
KEYWORDS = frozenset(("if", "then", "else", "elif", "do", "while", "until", "{", "}", "!", "(", ")"))
DEPTH = 4  # of scripts that start each other
MOST = 4 << 20  # bytes of a batch script, slurmctld's own limit


class Unclear(Exception):
    """It cannot be told what a command runs; the text says why."""


class Command:
    """A Python program: its script or module, its arguments, and where and with what it runs."""

    def __init__(self, script=None, module=None, argv=(), python=None, env=None, cwd=None, launcher=""):
        self.script, self.module, self.argv, self.python = script, module, list(argv), python
        self.env, self.cwd, self.launcher = dict(env or {}), cwd, launcher

    def words(self):
        return [*(["-m", self.module] if self.module else [self.script]), *self.argv]


def is_python(word):
    return PYTHON.match(os.path.basename(word)) is not None


def starts(word):
    """Whether a word is a program that starts Python."""
    return is_python(word) or os.path.basename(word) in LAUNCHERS or (
        word.endswith(".py") and not word.startswith("-") and ":" not in word)


def typed(words):
    """The program of a command, or None if it runs no Python."""
    words, env, slurm, cwd = list(words), {}, False, None
    while words:
        name = os.path.basename(words[0])
        if re.match(r"[A-Za-z_]\w*=", words[0]):
            key, _, value = words.pop(0).partition("=")
            env[key] = value
        elif name in CONTAINERS and any(starts(w) for w in words):
            raise Unclear(f"the command runs in a container of {name}: run carma-trace inside that container")
        elif name in WRAPPERS:
            slurm = slurm or name == "srun"
            if name in RUNNERS and "run" not in words:
                return None
            at = next((i for i, w in enumerate(words) if i and (
                starts(w) or os.path.basename(w) in CONTAINERS) and not (
                    name in RUNNERS and words[i - 1] in WITH_NAME)), len(words))
            env.update(w.split("=", 1) for w in words[1:at] if re.match(r"[A-Za-z_]\w*=", w))
            there = re.search(r"(?:^|\s)(?:--chdir[= ]|-D\s*|-C\s+)(\S+)" if name == "env" else
                              r"(?:^|\s)(?:--chdir[= ]|-D\s*)(\S+)", " ".join(words[1:at]))
            if there and name in ("srun", "env"):
                cwd = there[1]
            words = words[at:]
        else:
            break
    if not words or not starts(words[0]):
        return None
    command = program(words)
    command.env = {**(SLURM if slurm else {}), **env, **command.env}
    command.cwd = cwd
    return command


def program(words):
    name = os.path.basename(words[0])
    if name in LAUNCHERS:
        return launched(name, words[1:])
    if not is_python(words[0]):
        return Command(words[0], argv=words[1:])
    python, rest = words[0] if "/" in words[0] else None, words[1:]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m" and rest:
            module, rest = rest[0], rest[1:]
            if module in MODULES:
                command = launched(MODULES[module], rest)
                command.python = python
                return command
            return Command(module=module, argv=rest, python=python)
        if option == "-c" or option == "-":
            raise Unclear(f"python {option} has no script: write the code to a file")
        if option in VALUED and rest:
            rest.pop(0)
    if not rest:
        raise Unclear("python is started without a script")
    return Command(rest[0], argv=rest[1:], python=python)


def launched(name, words):
    """What a launcher runs: the first script, or the module behind -m."""
    for i, word in enumerate(words):
        if word in ("-m", "--module") and i + 1 < len(words):
            command = Command(module=words[i + 1], argv=words[i + 2:])
            break
        if word.endswith(".py"):
            command = Command(word, argv=words[i + 1:])
            break
    else:
        raise Unclear(f"{name} names no script that ends with .py and no module: "
                      "give the script itself to carma-trace")
    command.launcher = name
    if name == "accelerate":
        command.env = accelerate(words[:i])
    else:
        command.env = dict(LAUNCHER)
    if name == "deepspeed":
        command.argv.insert(0, "--local_rank=0")
    elif name == "torch.distributed.launch" and "--use_env" not in words[:i] and "--use-env" not in words[:i]:
        command.argv.insert(0, "--local-rank=0")
    return command


def accelerate(options):
    """Accelerate's variables for what stands in its options or in its file of settings."""
    text, env = " ".join(options), {}
    at = re.search(r"--config_file[= ](\S+)", text)
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    path, settings = at[1] if at else os.path.join(home, "accelerate", "default_config.yaml"), ""
    if HIDDEN.search(path):
        env["ACCELERATE_CONFIG_FILE"] = path  # which decides much
    elif os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            settings = f.read(MOST)
    for name in ("mixed_precision", "gradient_accumulation_steps"):
        found = re.search(rf"--{name}[= ](\S+)", text) or re.search(rf"(?m)^\s*{name}:\s*'?(\w+)", settings)
        if found:
            env["ACCELERATE_" + name.upper()] = found[1]
    if "--use_fsdp" in text or re.search(r"(?m)^distributed_type:\s*FSDP", settings):
        raise Unclear("accelerate spreads the model over processes by FSDP, of which a trace has one: give mem=")
    return env


# Batch scripts.


class Batch:
    """Reads a batch script and finds the Python programs that it runs."""

    def __init__(self, path, args, env=None, cwd=None):
        self.cwd = cwd or os.getcwd()
        self.env = {**SLURM, "SLURM_SUBMIT_DIR": self.cwd, **(os.environ if env is None else env)}
        self.exported, self.unknown, self.python = {}, {}, None
        self.args, self.found, self.unclear = [path, *args], [], []
        self.number, self.seen, self.hidden = 0, "", []  # the line, what it says, and why each value is hidden

    def read(self, path, depth=0):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = re.sub("[\ue000\ue001]", "?", f.read(MOST))
        if depth == 0:
            self.options(text)
        end, pending, first = None, "", 0
        for number, line in enumerate(text.split("\n"), 1):
            if end is not None:
                end = None if line.strip() == end else end
                continue
            first = first if pending else number
            if line.endswith("\\") and not line.lstrip().startswith("#"):
                pending += line[:-1] + " "
                continue
            line, pending, self.number, self.seen = pending + line, "", number, ""
            here = re.search(r"<<-?\s*['\"]?(\w+)['\"]?", re.sub(r"\(\(.*?\)\)", "", line))  # 1 << 2 is a number
            if here and "<<<" not in line:
                end = here[1]
            try:
                self.line(line, depth)
            except (Unclear, ValueError) as err:
                if any(starts(w.strip("\"'")) for w in f"{line} {self.seen}".split()):
                    self.unclear.append(f"{path}, line {first}: {err}")
                else:
                    self.parts(line, number, depth)

    def options(self, text):
        """Where sbatch has the script start."""
        for line in text.split("\n"):
            if line.strip() and not line.startswith("#"):
                return
            found = re.match(r"#SBATCH\s+(?:.*\s)?(?:--chdir[= ]|-D\s*)(\S+)", line)
            if found:
                self.cwd = os.path.normpath(os.path.join(self.cwd, found[1].strip("'\"")))

    def line(self, line, depth):
        text = self.expanded(line)
        self.seen += " " + text
        for words in commands(text):
            self.command(words, depth)

    def parts(self, line, number, depth):
        """Commands of a line of which not all are clear."""
        for part in re.split(r"&&|\|\||;", line):
            try:
                self.line(part, depth)
            except (Unclear, ValueError):
                self.forget(part, number)

    def forget(self, line, number):
        """An assignment whose value is not known here."""
        for name in re.findall(r"(?:^|[\s;])([A-Za-z_]\w*)=", line):
            self.unknown[name] = number
            self.env.pop(name, None)

    def expanded(self, line):
        """A line with its variables; text in single quotes stays."""
        line = re.sub(r'"\$\{?@\}?"', "$@", line)
        parts = re.split(r"('[^']*')", line) if not line.lstrip().startswith("#") else [""]
        return "".join(p if p.startswith("'") else self.values(p) for p in parts)

    def values(self, text):
        def value(m):
            name, default = m[1] or m[3] or m[4], m[2]
            if name == "@" or name == "*":
                return shlex.join(self.args[1:])
            if name.isdigit():
                found = self.args[int(name)] if int(name) < len(self.args) else ""
            elif name in self.unknown:
                return self.hide(f"${name} is known only within the job (line {self.unknown[name]} of the script): "
                                 "give the command itself to carma-trace")
            else:
                found = self.env.get(name, "1" if name.startswith("SLURM_") else "")
            return found or (default or "")

        text = re.sub(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`", lambda m: self.cwd, text)
        text = re.sub(r"(?<!\\)\$(?:\{(\w+|@|\*)(?::?[-=]([^}$]*))?\}|(\d|@|\*)|([A-Za-z_]\w*))", value, text)
        why = "the line has $(...) or ${...}, which only the job knows: give the command itself to carma-trace"
        inner = re.compile(r"(?<!\\)(?:\$\([^()`]*\)|\$\(\([^()`]*\)\)|\$\{[^{}`]*\}|`[^`]*`)")
        for _ in range(DEPTH):
            text = inner.sub(lambda m: self.hide(why), text)
        if re.search(r"(?<!\\)(\$[({]|`)", text):
            raise Unclear(why)
        return text

    def hide(self, why):
        self.hidden.append(why)
        return f"\ue000{len(self.hidden) - 1}\ue001"

    def clear(self, words):
        """Refuses words that only the job knows."""
        for found in HIDDEN.finditer(" ".join(words)):
            raise Unclear(self.hidden[int(found[1])])

    def command(self, words, depth):
        while words and words[0] in KEYWORDS:
            words = words[1:]
        if not words:
            return
        name = words[0]
        if name == "for" and len(words) > 3 and words[2] == "in":
            self.set(words[1], words[3])
            return
        if name in ("export", "declare", "local", "readonly"):
            words = [w for w in words[1:] if not w.startswith("-")]
            self.exported.update((w.split("=", 1)[0], None) for w in words)
        if all(re.match(r"[A-Za-z_]\w*=", w) for w in words):
            for w in words:
                key, _, value = w.partition("=")
                self.set(key, value)
            return
        if name in ("cd", "pushd", "source", ".", "conda", "mamba", "micromamba"):
            self.clear(words)
        if name in ("cd", "pushd"):
            self.cwd = os.path.normpath(os.path.join(self.cwd, os.path.expanduser((words + ["~"])[1])))
        elif name in ("source", "."):
            self.source(words[1:], depth)
        elif name in ("conda", "mamba", "micromamba") and words[1:2] == ["activate"]:
            self.activate((words + ["base"])[2])
        else:
            self.run(words, depth)

    def set(self, key, value):
        if HIDDEN.fullmatch(value):
            self.unknown[key] = self.number
            self.env.pop(key, None)
            return
        self.env[key] = value
        self.unknown.pop(key, None)

    def source(self, words, depth):
        at = os.path.join(self.cwd, os.path.expanduser(words[0])) if words else ""
        python = os.path.join(os.path.dirname(at), "python")
        if os.path.basename(at) == "activate" and os.path.exists(python):
            self.python = python
        elif os.path.isfile(at) and depth < DEPTH and at.endswith((".sh", ".env", ".bash")):
            self.read(at, depth + 1)

    def activate(self, name):
        """The Python of a conda environment, where such environments usually are."""
        base = os.path.dirname(os.path.dirname(self.env.get("CONDA_EXE", "/")))
        home = os.path.expanduser("~")
        for at in (name, os.path.join(base, "envs", name), *glob.glob(os.path.join(home, ".conda/envs", name)),
                   *glob.glob(os.path.join(home, "*", "envs", name))):
            python = os.path.join(self.cwd, os.path.expanduser(at), "bin", "python")
            if os.path.exists(python):
                self.python = python
                return

    def shell(self, words, depth):
        """Whether a command is bash -c "...", which is followed, as a shell of its own."""
        before = next((i for i, w in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", w)), len(words))
        words, env = words[before:], dict(w.split("=", 1) for w in words[:before])
        names = [os.path.basename(w) for w in words]
        at = next((i for i, n in enumerate(names) if n in SHELLS or starts(words[i])), len(words))
        if not names[at:at + 1] or names[at] not in SHELLS:
            return False
        c = at + 1
        while c < len(words) and re.match("[-+]", words[c]) and not re.fullmatch(r"-\w*c", words[c]):
            c += 2 if re.fullmatch(r"[-+]\w*[oO]", words[c]) else 1  # bash -o pipefail
        if c == len(words) or not re.fullmatch(r"-\w*c", words[c]):
            return False
        if len(words) > c + 1 and depth < DEPTH and names[0] in SHELLS | WRAPPERS | CONTAINERS:
            held = next((n for n in names[:at] if n in CONTAINERS), None)
            if held and any(starts(w) for w in words[c + 1].split()):
                raise Unclear(f"the command runs in a container of {held}: run carma-trace inside that container")
            known = len(self.found)
            outer = self.cwd, dict(self.env), dict(self.exported), dict(self.unknown), self.python
            for key, value in env.items():
                self.set(key, value)
                self.exported[key] = None
            try:
                self.line(words[c + 1], depth + 1)
            finally:
                self.cwd, self.env, self.exported, self.unknown, self.python = outer
            for command in self.found[known:] if "srun" in names[:at] else ():
                command.env = {**SLURM, **command.env}
        return True

    def run(self, words, depth):
        if self.shell(words, depth):
            return
        inner = [w for w in words if w.endswith((".sh", ".bash", ".slurm", ".sbatch"))]
        if inner and not any(starts(w) for w in words) and depth < DEPTH:
            at, args = os.path.join(self.cwd, inner[0]), self.args
            if os.path.isfile(at) and os.path.basename(words[0]) != "sbatch":
                self.args = [inner[0], *words[words.index(inner[0]) + 1:]]
                self.read(at, depth + 1)
                self.args = args
            return
        found = typed(words)
        if found is None:
            return
        self.clear([*found.words(), *found.env.values(), found.cwd or "", found.python or ""])
        exported = {k: self.env[k] for k in self.exported if k in self.env and not HIDDEN.search(self.env[k])}
        found.env = {**exported, **found.env}
        found.cwd = os.path.normpath(os.path.join(self.cwd, found.cwd or "."))
        found.python = found.python or self.python
        self.found.append(found)


def uncommented(line):
    """A line without its comment, which begins where a word could: --name=a#b is a word."""
    quote, before = "", " "
    for i, c in enumerate(line):
        if quote:
            quote = "" if c == quote and before != "\\" else quote
        elif c in "'\"" and before != "\\":
            quote = c
        elif c == "#" and before in " \t;(&|":
            return line[:i]
        before = c
    return line


def commands(line):
    """The simple commands of a line, without redirections."""
    lexer = shlex.shlex(uncommented(line), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    words, skip = [], False
    for word in lexer:
        if skip:
            skip = False
        elif set(word) <= set("<>&") and set(word) & set("<>"):
            skip = True
            if words and words[-1].isdigit():
                words.pop()  # of 2>
        elif set(word) <= set("();|&"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def is_batch(path):
    """Whether a file is a shell script."""
    if path.endswith((".py", ".pyc")) or not os.path.isfile(path):
        return False
    with open(path, "rb") as f:
        first = f.readline(200)
    return first.startswith(b"#!") and re.search(rb"\b(ba|da|z|k)?sh\b", first) is not None


def of(words):
    """The Python programs of a command; several only for a batch script."""
    if words[0] == "-m":
        return [typed(["python", *words])]
    if is_batch(words[0]):
        batch = Batch(words[0], words[1:])
        batch.read(words[0])
        if not batch.found:
            raise Unclear(batch.unclear[0] if batch.unclear else f"{words[0]}: it runs no Python program by name: "
                          "give the command itself to carma-trace")
        return batch.found
    found = typed(words)
    if found is None:
        found = Command(words[0], argv=words[1:])
    return [found]


TRAINS = re.compile(rb"\.backward\(|\boptim\b|optimizer|Trainer\b|Accelerator\b|deepspeed|lightning", re.I)
NAMED = re.compile(r"train|tune|fit", re.I)
MOST_SOURCE = 1 << 20


def training(commands):
    """The one program of several that trains.

    Behind a launcher, or by what its text has, or by its name: preparing and evaluating programs are not run for a
    trace, for they may take hours and talk to others.
    """
    def text(command):
        path = command.script or os.path.join(*command.module.split(".")) + ".py"
        path = os.path.join(command.cwd or "", path)
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as f:
            return f.read(MOST_SOURCE)

    for trains in (lambda c: c.launcher, lambda c: TRAINS.search(text(c)),
                   lambda c: NAMED.search(c.module or os.path.basename(c.script))):
        found = [c for c in commands if trains(c)]
        if found:
            return found[0]
    return commands[0]
