"""Imports vLLM's Python files without a GPU, torch or any compiled part: what cannot be imported is replaced by a stand-in."""
import importlib.abc
import importlib.machinery
import sys
import types
import typing

# Packages that are never loaded, even where they are installed: the stand-ins below are used for them.
NEVER = {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "flashinfer", "tilelang", "cutlass", "numba", "compressed_tensors"}


class Meta(type(typing.Protocol)):
    """The class of stand-ins. A stand-in serves as a base class, a decorator, a type in an annotation, a function or a value.
    Classes of vLLM derived from one behave as usual."""

    def __getattr__(cls, name):
        if "_stand_in" not in cls.__dict__ or name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args, **kwargs):
        if "_stand_in" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type, classmethod, staticmethod)):
            return args[0]  # a decorator
        return stand_in(cls.__name__)

    def __getitem__(cls, key):
        return cls

    def __or__(cls, other):
        return typing.Any

    __ror__ = __or__

    def __iter__(cls):
        return iter(())

    def __len__(cls):
        return 0

    def __bool__(cls):
        return "_stand_in" not in cls.__dict__

    def __instancecheck__(cls, obj):
        return "_stand_in" not in cls.__dict__ and super().__instancecheck__(obj)

    def __subclasscheck__(cls, other):
        return cls in getattr(other, "__mro__", ())

    def __enter__(cls):
        return cls

    def __exit__(cls, *_):
        return False


for operator in ("add radd sub rsub mul rmul truediv rtruediv floordiv pow mod neg lt le gt ge and invert lshift rshift").split():
    setattr(Meta, f"__{operator}__", lambda cls, *_: cls)


class Base:
    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__()


def stand_in(name):
    return Meta(name, (Base,), {"_stand_in": True, "__module__": "stand_in", "__version__": "2.14.0", "__doc__": ""})


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__version__",):
            raise AttributeError(name)
        made = "2.14.0" if name == "__version__" else stand_in(name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for the packages of NEVER first, and last for everything else that is missing."""

    def __init__(self, missing):
        self.missing, self.made = missing, set()

    def find_spec(self, name, path=None, target=None):
        root, _, rest = name.partition(".")
        if self.missing:
            parent = sys.modules.get(name.rpartition(".")[0])
            if rest and not isinstance(parent, Module) and not (root == "vllm" and compiled(name)):
                return None
            if not rest and (root in sys.stdlib_module_names or not importer().startswith("vllm")):
                return None
        elif root not in NEVER or not rest and not importer().startswith("vllm"):
            return None
        self.made.add(root)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def importer():
    """The name of the module whose import statement is running."""
    frame = sys._getframe(2)
    while frame and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame else ""


def compiled(name):
    return name.rpartition(".")[2].startswith("_") or "vllm_flash_attn" in name or "third_party" in name


def see_nothing():
    """Has transformers look for optional packages now, so that it takes no stand-in for one of them."""
    from transformers.utils import import_utils

    for name, ask in list(vars(import_utils).items()):
        if name.startswith("is_") and name.endswith("_available") and callable(ask):
            try:
                ask()
            except Exception:
                pass


def install(root):
    """Puts the unpacked wheel at root in front of the path, and stand-ins behind it."""
    see_nothing()
    sys.path.insert(0, root)
    finders = Finder(False), Finder(True)
    sys.meta_path.insert(0, finders[0])
    sys.meta_path.append(finders[1])
    return finders[1].made
