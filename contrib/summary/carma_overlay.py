# SPDX-License-Identifier: Apache-2.0
"""What a traced script writes goes into a folder of its own; the user's files stay as they are.

Within the run the script sees its own writes: a path is looked up in the
folder first, then in the file system. What the script removes is hidden from
the script and stays on disk. The functions of Python are replaced, builtins.open
and those of os; pathlib, shutil, tempfile, json, numpy and sqlite3 call these.
"""

import builtins
import contextlib
import errno
import functools
import glob  # noqa: F401 - owners() knows it
import io
import os
import pathlib  # noqa: F401
import shutil
import stat
import sys
import types

COPY_MOST = 1 << 30  # bytes of a file that is changed in place, and so copied
LINKS_MOST = 40  # symbolic links in one path, as in Linux


class TooLarge(OSError):
    """A file that the script changes in place is too large to be copied."""


class Entry:
    """An os.DirEntry of a folder of which a part is in the overlay."""

    def __init__(self, overlay, folder, name):
        self._overlay, self.name, self.path = overlay, name, os.path.join(folder, name)

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"<Entry {self.name!r}>"

    def stat(self, *, follow_symlinks=True):
        return (os.stat if follow_symlinks else os.lstat)(self.path)

    def inode(self):
        return os.lstat(self.path).st_ino

    def is_junction(self):
        return False

    def is_symlink(self):
        return self._is(stat.S_ISLNK, False)

    def is_dir(self, *, follow_symlinks=True):
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        return self._is(stat.S_ISREG, follow_symlinks)

    def _is(self, kind, follow):
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False


class Entries:
    """What os.scandir returns."""

    def __init__(self, entries):
        self.entries = iter(entries)

    def __iter__(self):
        return self.entries

    def __next__(self):
        return next(self.entries)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self.entries = iter(())


class Overlay:
    """The folder, and where a path leads.

    `plain` has Python's own functions. `gone` are paths of the file system that
    are hidden, with all below them; what the folder has at such a path is seen.
    """

    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        self.upper = os.path.join(self.folder, "upper")
        self.gone = set()
        self.touched = False
        self.plain = types.SimpleNamespace(open=builtins.open, FileIO=io.FileIO)
        self.undo = []

    # Where a path leads.

    def inside(self, path):
        return path == self.folder or path.startswith(self.folder + "/")

    def text(self, path, dir_fd=None):
        """An absolute path as the script means it."""
        path = os.fsdecode(path)
        if not path.startswith("/"):
            base = self.plain.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else self.plain.getcwd()
            path = os.path.join(base, path)
        if path.startswith(self.upper + "/"):
            path = path[len(self.upper):]
        return path

    def at(self, path):
        """What the script sees at a path without links: in the overlay, or in the file system, or nothing (None)."""
        over = self.upper + path
        if self.present(over):
            return over
        return None if self.hidden(path) or not self.present(path) else path

    def present(self, path):
        try:
            self.plain.lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def hidden(self, path):
        while self.gone and path != "/":
            if path in self.gone:
                return True
            path = os.path.dirname(path)
        return False

    def resolve(self, path, follow=True, dir_fd=None):
        """The path without symbolic links, as the script sees them."""
        todo, done, links = self.text(path, dir_fd).split("/")[::-1], "", 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = os.path.dirname(done).rstrip("/")
                continue
            done = f"{done}/{part}"
            at = self.at(done) if (follow or todo) and not self.inside(done) else None
            if at is not None and stat.S_ISLNK(self.plain.lstat(at).st_mode):
                links += 1
                if links > LINKS_MOST:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = self.plain.readlink(at)
                todo.extend(target.split("/")[::-1])
                done = "" if target.startswith("/") else os.path.dirname(done).rstrip("/")
        return done or "/"

    def reading(self, path, follow=True, dir_fd=None):
        """The path to read instead of a path."""
        if isinstance(path, int) or path is None or not self.touched:
            return path
        name = self.text(path, dir_fd)
        if name.startswith("/proc/") or self.inside(name):
            return path
        name = self.resolve(path, follow, dir_fd)
        return name if self.inside(name) else self.at(name) or self.upper + name

    def special(self, path):
        """A terminal, a pipe, /dev/null: no file that a write could harm."""
        try:
            mode = self.plain.stat(path).st_mode
        except (OSError, ValueError):
            return False
        return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

    def writing(self, path, follow=True, dir_fd=None, content=True):
        """The path to write instead of a path: its folder is there, and its content unless that will be replaced."""
        name = self.resolve(path, follow, dir_fd)
        if self.inside(name) or self.special(name):
            return name
        self.touched = True
        over = self.upper + name
        self.folders(os.path.dirname(name))
        if content and not self.present(over) and not self.hidden(name) and self.present(name):
            self.copy(name, over)
        return over

    def folders(self, path):
        """Makes the overlay's copy of a folder that the script sees."""
        if self.present(self.upper + path) or self.at(path) is None:
            return
        parent = os.path.dirname(path)
        if parent != path:
            self.folders(parent)
        with contextlib.suppress(FileExistsError):
            self.plain.mkdir(self.upper + path)

    def copy(self, path, over):
        state = self.plain.lstat(path)
        if stat.S_ISLNK(state.st_mode):
            self.plain.symlink(self.plain.readlink(path), over)
        elif stat.S_ISDIR(state.st_mode):
            self.plain.mkdir(over)
        elif stat.S_ISREG(state.st_mode):
            if state.st_size > COPY_MOST:
                raise TooLarge(errno.EFBIG, f"the script changes a file of {state.st_size:,} bytes in place, "
                               "which is too large to be copied for a trace", path)
            with self.plain.open(path, "rb") as old, self.plain.open(over, "wb") as new:
                while block := old.read(1 << 20):
                    new.write(block)
            self.plain.chmod(over, stat.S_IMODE(state.st_mode) | stat.S_IWUSR)

    def copy_tree(self, path):
        """The overlay's copy of a path and of all below it."""
        over = self.writing(path, follow=False)
        if not over.startswith(self.upper):
            return over
        if stat.S_ISDIR(self.plain.lstat(over).st_mode):
            for name in self.names(path):
                self.copy_tree(os.path.join(path, name))
        return over

    def names(self, path):
        """What a folder lists."""
        name = self.resolve(path)
        over, found = self.upper + name, set()
        if not self.hidden(name) and self.present(name):
            found = {n for n in self.plain.listdir(name) if os.path.join(name, n) not in self.gone}
        if self.present(over):
            return sorted(found | set(self.plain.listdir(over)))
        if self.at(name) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sorted(found)

    def absent(self, path, follow=False, dir_fd=None):
        """The path to make something at; raises if something is there."""
        name = self.resolve(path, follow, dir_fd)
        if not self.inside(name) and self.at(name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self.writing(path, follow, dir_fd, content=False)

    # The functions that take the place of Python's.

    def open(self, file, mode="r", *args, opener=None, **kwargs):
        if isinstance(file, int) or opener is not None:
            return self.plain.open(file, mode, *args, opener=opener, **kwargs)
        return self.plain.open(self.by_mode(file, mode), mode, *args, **kwargs)

    def by_mode(self, file, mode):
        if not set(mode) & set("wax+"):
            return self.reading(file)
        if "x" in mode:
            return self.absent(file, follow=True)
        return self.writing(file, content="w" not in mode)

    def os_open(self, path, flags, mode=0o777, *, dir_fd=None):
        if not isinstance(path, int):
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                follow = not flags & os.O_NOFOLLOW
                if flags & os.O_CREAT and flags & os.O_EXCL:
                    path = self.absent(path, False, dir_fd)
                else:
                    path = self.writing(path, follow, dir_fd, content=not flags & os.O_TRUNC)
                dir_fd = None
            elif self.touched:
                path, dir_fd = self.reading(path, not flags & os.O_NOFOLLOW, dir_fd), None
        return self.plain.os_open(path, flags, mode, dir_fd=dir_fd)

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        self.plain.mkdir(self.absent(path, False, dir_fd), mode)

    def remove(self, path, *, dir_fd=None):
        name = self.resolve(path, False, dir_fd)
        at = self.at(name)
        if self.inside(name) or at is None or stat.S_ISDIR(self.plain.lstat(at).st_mode):
            return self.plain.remove(name if self.inside(name) else at or self.upper + name)
        return self.hide(name, at, self.plain.remove)

    def hide(self, name, at, remove):
        self.touched = True
        if at != name:
            remove(at)
        self.gone.add(name)

    def rmdir(self, path, *, dir_fd=None):
        name = self.resolve(path, False, dir_fd)
        at = self.at(name)
        if self.inside(name) or at is None or not stat.S_ISDIR(self.plain.lstat(at).st_mode):
            return self.plain.rmdir(name if self.inside(name) else at or self.upper + name)
        if self.names(name):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        return self.hide(name, at, self.plain.rmdir)

    def rename(self, src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        source = self.resolve(src, False, src_dir_fd)
        if not self.inside(source) and self.at(source) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src, None, dst)
        target = self.resolve(dst, False, dst_dir_fd)
        if target != source:
            over = self.copy_tree(source)
            self.plain.replace(over, self.writing(target, False, content=False))
            self.gone.update((source, target))

    def link(self, src, dst, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
        self.plain.link(self.writing(src, follow_symlinks, src_dir_fd), self.absent(dst, False, dst_dir_fd))

    def symlink(self, src, dst, target_is_directory=False, *, dir_fd=None):
        self.plain.symlink(src, self.absent(dst, False, dir_fd))

    def truncate(self, path, length):
        self.plain.truncate(path if isinstance(path, int) else self.writing(path), length)

    def attribute(self, plain, path, *args, **kwargs):
        """Modes, owners and times: set on what the overlay has, left alone on the user's files."""
        if isinstance(path, int):
            if self.inside(self.plain.readlink(f"/proc/self/fd/{path}")):
                plain(path, *args, **kwargs)
            return
        follow = kwargs.get("follow_symlinks", True) and plain.__name__ not in ("lchown", "lchmod")
        name = self.resolve(path, follow, kwargs.pop("dir_fd", None))
        at = name if self.inside(name) else self.at(name)
        if at is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self.inside(at):
            plain(at, *args, **kwargs)

    def read(self, plain, path=".", *args, dir_fd=None, **kwargs):
        """stat, access and their like."""
        if isinstance(path, int) or not self.touched:
            more = {} if dir_fd is None else {"dir_fd": dir_fd}
            return plain(path, *args, **more, **kwargs)
        follow = kwargs.get("follow_symlinks", True) and plain.__name__ not in ("lstat", "readlink")
        return plain(self.reading(path, follow, dir_fd), *args, **kwargs)

    def listed(self, path):
        """Whether a folder is listed by this overlay and not by the system; its path."""
        if not self.touched:
            return None
        if isinstance(path, int):
            path = self.plain.readlink(f"/proc/self/fd/{path}")
        name = self.resolve("." if path is None else path)
        if self.inside(name) or name == "/proc" or name.startswith("/proc/"):
            return None
        if self.present(self.upper + name) or any(g == name or g.startswith(name + "/") for g in self.gone):
            return name
        return name if self.hidden(name) else None

    def listdir(self, path="."):
        name = self.listed(path)
        if name is None:
            return self.plain.listdir(path)
        names = self.names(name)
        return [os.fsencode(n) for n in names] if isinstance(path, bytes) else names

    def scandir(self, path="."):
        name = self.listed(path)
        if name is None:
            return self.plain.scandir(path)
        folder = name if isinstance(path, int) else os.fsdecode("." if path is None else path)
        return Entries([Entry(self, folder, n) for n in self.names(name)])

    def getcwd(self):
        path = self.plain.getcwd()
        return path[len(self.upper):] if path.startswith(self.upper + "/") else path

    def connect(self, plain, database, *args, **kwargs):
        """sqlite3.connect: SQLite opens its files itself."""
        name = os.fsdecode(database)
        if name.startswith("file:"):
            at, mark, rest = name[5:].partition("?")
            at = "/" + at.lstrip("/") if at.startswith("//") else at
            if ":memory:" not in at and "mode=memory" not in rest:
                database = "file:" + self.database(at) + mark + rest
        elif name not in ("", ":memory:"):
            database = self.database(name)
        return plain(database, *args, **kwargs)

    def database(self, name):
        for more in ("-wal", "-journal"):
            if self.at(self.resolve(name + more)):
                self.writing(name + more)
        return self.writing(name)

    # Putting them in place.

    def replacements(self):
        """Python's function, the name that `plain` gives it, and what takes its place."""
        for name in ("mkdir", "remove", "rmdir", "link", "symlink", "truncate", "listdir", "scandir", "getcwd"):
            yield getattr(os, name), name, getattr(self, name)
        yield os.open, "os_open", self.os_open
        yield os.unlink, "unlink", self.remove
        yield os.rename, "rename", self.rename
        yield os.replace, "replace", self.rename
        yield os.getcwdb, "getcwdb", lambda: os.fsencode(self.getcwd())
        for name in ("stat", "lstat", "access", "readlink", "chdir", "statvfs", "getxattr", "listxattr", "pathconf"):
            yield getattr(os, name), name, functools.partial(self.read, getattr(os, name))
        for name in ("chmod", "chown", "lchown", "utime", "setxattr", "removexattr", "lchmod", "fchmod", "fchown"):
            if hasattr(os, name):
                yield getattr(os, name), name, functools.partial(self.attribute, getattr(os, name))
        for name in ("mkfifo", "mknod"):
            plain = getattr(os, name)
            yield plain, name, lambda path, *a, _plain=plain, dir_fd=None, **k: _plain(
                self.absent(path, False, dir_fd), *a, **k)
        with contextlib.suppress(ImportError):
            import sqlite3
            yield sqlite3.connect, "connect", functools.partial(self.connect, sqlite3.connect)
        with contextlib.suppress(ImportError):
            import _gdbm
            yield _gdbm.open, "gdbm", lambda name, *a: self.plain.gdbm(self.writing(name), *a)

    def file_class(self):
        overlay, plain = self, self.plain.FileIO

        class Kind(type(plain)):
            def __instancecheck__(cls, thing):
                return isinstance(thing, plain)

        class FileIO(plain, metaclass=Kind):
            def __init__(self, file, mode="r", closefd=True, opener=None):
                if not isinstance(file, int) and opener is None:
                    file = overlay.by_mode(file, mode)
                super().__init__(file, mode, closefd, opener)

        return FileIO

    def __enter__(self):
        os.makedirs(self.upper, exist_ok=True)
        new = {id(self.plain.open): (self.plain.open, self.open), id(self.plain.FileIO): (io.FileIO, self.file_class())}
        for plain, name, mine in list(self.replacements()):
            setattr(self.plain, name, plain)
            new[id(plain)] = plain, mine
        for owner in list(self.owners()):
            for name, value in list(vars(owner).items()) if not isinstance(owner, dict) else list(owner.items()):
                value = value.__func__ if type(value) is staticmethod else value  # a test that asks no foreign object
                if id(value) in new and value is new[id(value)][0]:
                    self.exchange(owner, name, new[id(value)][1])
        for able in (os.supports_dir_fd, os.supports_follow_symlinks, os.supports_fd, os.supports_effective_ids):
            able.update(mine for plain, mine in new.values() if plain in able)
        self.exchange(shutil, "_use_fd_functions", False)  # by path, so that a path is what is looked up
        return self

    def owners(self):
        """What may hold a function of Python's by now: modules, and classes and tables of a few."""
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and module.__name__ != __name__:
                yield module
                if module.__name__.partition(".")[0] in ("glob", "pathlib", "tempfile"):
                    yield from (c for c in list(vars(module).values()) if isinstance(c, type))
        openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
        yield getattr(openers, "_file_openers", {})

    def exchange(self, owner, name, mine):
        if isinstance(owner, dict):
            self.undo.append((owner.__setitem__, name, owner[name]))
            owner[name] = mine
            return
        self.undo.append((functools.partial(setattr, owner), name, vars(owner)[name]))
        with contextlib.suppress(TypeError):  # a class of C
            setattr(owner, name, staticmethod(mine) if isinstance(owner, type) else mine)

    def __exit__(self, *error):
        while self.undo:
            change, name, value = self.undo.pop()
            with contextlib.suppress(TypeError):
                change(name, value)
