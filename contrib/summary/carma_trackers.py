# SPDX-License-Identifier: Apache-2.0
"""Experiment trackers, off: a traced script reports no run, to no server and to no file.

Each tracker is told so by its own variable. wandb stays, in its own mode
`disabled`, because scripts read their settings back from it. In place of the
others stand modules whose every function does nothing.
"""

import importlib.abc
import importlib.machinery
import os
import sys

VARIABLES = {
    "WANDB_MODE": "disabled", "WANDB_DISABLED": "true", "WANDB_SILENT": "true", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug", "CLEARML_OFFLINE_MODE": "1", "SWANLAB_MODE": "disabled",
    "TRACKIO_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
}
OFF = ("mlflow", "comet_ml", "neptune", "clearml", "aim", "swanlab", "trackio", "dvclive", "sacred", "visdom",
       "tensorboardX", "tensorboard_logger", "torch.utils.tensorboard")


class Quiet:
    """An object whose every function does nothing; reads as an empty text, an empty list and false."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    def __str__(self):
        return ""


class Class(type):
    """A class of a tracker's: its own functions do nothing, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Nothing(Quiet):
    """A function that does nothing."""

    def __call__(self, *args, **kwargs):
        # @mlflow.trace and its like keep what they decorate
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Nothing()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a tracker that is installed, and loads something that does nothing."""

    def find_spec(self, name, path=None, target=None):
        top = next((o for o in OFF if name == o or name.startswith(o + ".")), None)
        if name == "wandb" or top is not None:
            real = importlib.machinery.PathFinder.find_spec(name, path) if name in (top, "wandb") else True
            if real is None and name != "torch.utils.tensorboard":
                return None
            if name == "wandb":
                real.loader = Disabled(real.loader)
                return real
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module):
        def get(name):
            if name == "__version__":
                return "0.0.0"
            if name.startswith("__"):
                raise AttributeError(name)
            return Class(name, (Quiet,), {}) if name[:1].isupper() else Nothing()

        module.__getattr__ = get


class Disabled(importlib.abc.Loader):
    """wandb, which takes no other mode than disabled."""

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        init = getattr(module, "init", None)
        if init is not None:
            module.init = lambda *args, **kwargs: init(*args, **dict(kwargs, mode="disabled"))


def off():
    os.environ.update(VARIABLES)
    sys.meta_path.insert(0, Finder())
