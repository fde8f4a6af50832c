"""Pretty printers of gdb for tensors, shapes, devices and modules. `meson install` puts this file where gdb loads it with
libmixtape.so; otherwise: (gdb) source script/mixtape_gdb.py

    (gdb) print x
    $1 = f32 [2, 3] [[1 2 3] [4 5 6]]
    (gdb) print net
    $2 = Mlp = {up = Linear = {weight = f32 [8, 4] requires_grad [...], ...}, down = ...}

Values are read from memory: nothing of the program runs, so it also works on a core file."""
import struct

import gdb
import gdb.printing

FORMATS = {"f64": "d", "f32": "f", "f16": "e", "bf16": "H", "i64": "q", "i32": "i", "u8": "B", "boolean": "?", "i8": "b", "i16": "h",
           "u16": "H", "u32": "I", "f8_e4m3": "B", "f8_e5m2": "B", "f8_e8m0": "B"}  # of f8, the bytes
LONGEST_IN_FULL, EDGE = 64, 3  # elements; beyond, axes keep so many at either end


def pointer(shared: gdb.Value) -> gdb.Value:
    """The pointer in a std::shared_ptr of libstdc++ or libc++."""
    names = [field.name for field in shared.type.strip_typedefs().fields()]
    if "__ptr_" in names:
        return shared["__ptr_"]
    return shared["_M_ptr"]


def sizes(shape: gdb.Value) -> list[int]:
    return [int(shape["dim"][i]) for i in range(min(max(int(shape["rank"]), 0), 8))]


def enumerator(value: gdb.Value) -> str:
    return str(value).rsplit("::", 1)[-1]


def device_name(device: gdb.Value) -> str:
    kind = enumerator(device["type"])
    return kind if kind == "cpu" else f"{kind}:{int(device['index'])}"


class Shape:
    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        return str(sizes(self.value))


class Device:
    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        return device_name(self.value)


class Tensor:
    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        at = pointer(self.value["impl_"])
        if int(at) == 0:
            return "no tensor"
        impl = at.dereference()
        view = impl["view"]
        dtype = enumerator(view["dtype"])
        shape, strides = sizes(view["layout"]["shape"]), sizes(view["layout"]["strides"])
        text = f"{'bool' if dtype == 'boolean' else dtype} {shape}"
        if int(pointer(impl["grad_fn"])) != 0:
            text += " of an op"
        elif impl["requires_grad"]:
            text += " requires_grad"
        device = device_name(pointer(impl["storage"]).dereference()["device_"])
        if device != "cpu":
            return f"{text} on {device}"
        try:
            return f"{text} {self.elements(int(view['data']), dtype, shape, strides)}"
        except gdb.MemoryError:
            return f"{text} in memory that cannot be read"

    @staticmethod
    def elements(data: int, dtype: str, shape: list[int], strides: list[int]) -> str:
        code = FORMATS[dtype]
        size = struct.calcsize(code)
        memory = gdb.selected_inferior()

        def element(offset: int) -> str:
            (value,) = struct.unpack("=" + code, bytes(memory.read_memory(data + offset * size, size)))
            if dtype == "bf16":
                (value,) = struct.unpack("=f", struct.pack("=I", value << 16))
            return f"{value:.5g}" if isinstance(value, float) else str(value).lower()

        total = 1
        for n in shape:
            total *= n

        def axis(d: int, offset: int) -> str:
            if d == len(shape):
                return element(offset)
            n = shape[d]
            shown = list(range(n))
            if total > LONGEST_IN_FULL and n > 2 * EDGE:
                shown = [*range(EDGE), None, *range(n - EDGE, n)]
            return "[" + " ".join("..." if i is None else axis(d + 1, offset + i * strides[d]) for i in shown) + "]"

        return axis(0, 0)


class Module:
    """A module by its own fields, and its mode if the library was compiled with -g."""

    def __init__(self, value: gdb.Value) -> None:
        self.value = value

    def to_string(self) -> str:
        name = str(self.value.type.strip_typedefs().unqualified())
        plain, depth = "", 0  # without namespaces, also in the arguments of a template
        for c in name:
            depth += (c == "<") - (c == ">")
            plain += c
            if plain.endswith("::") and depth == 0:
                plain = ""
        try:
            return f"{plain} in {'training' if self.value['training_'] else 'evaluation'}"
        except gdb.error:  # g++ describes ModuleBase where its virtual functions are, in a library without -g
            return plain

    def children(self):
        yield from self.fields(self.value)

    def fields(self, value: gdb.Value):
        for field in value.type.strip_typedefs().fields():
            if hasattr(field, "bitpos") is False:  # static
                continue
            if field.is_base_class:
                if not str(field.type.strip_typedefs()).startswith(("mixtape::nn::ModuleBase", "mixtape::nn::Module<")):
                    yield from self.fields(value[field])
            elif not field.name.startswith("_vptr"):
                yield field.name, value[field]


def derives(kind: gdb.Type, base: str) -> bool:
    kind = kind.strip_typedefs().unqualified()
    if kind.code != gdb.TYPE_CODE_STRUCT:
        return False
    if kind.tag == base:
        return True
    return any(field.is_base_class and derives(field.type, base) for field in kind.fields())


class Printers(gdb.printing.PrettyPrinter):
    """The printer of a value of our types, or of types that derive from them."""

    def __init__(self) -> None:
        super().__init__("mixtape")

    def __call__(self, value: gdb.Value):
        kind = value.type.strip_typedefs()
        if kind.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
            value = value.referenced_value()
            kind = value.type.strip_typedefs()
        if kind.code != gdb.TYPE_CODE_STRUCT:
            return None
        for printer in Tensor, Shape, Device:
            if kind.unqualified().tag == f"mixtape::{printer.__name__}":
                return printer(value)
        if derives(kind, "mixtape::Tensor"):
            return Tensor(value)
        if derives(kind, "mixtape::nn::ModuleBase"):
            return Module(value)
        return None


gdb.printing.register_pretty_printer(gdb.current_objfile(), Printers(), replace=True)
