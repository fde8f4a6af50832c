// Files of PyTorch: reads what torch.save writes, writes what torch.load reads, and runs nothing.

#include "io/torch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/format.h"
#include "io/file.h"
#include "io/zip.h"
#include "tests/support/damage.h"
#include "tests/support/data.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace mixtape::io {
namespace torch_test {

using namespace std::string_literals;
using test::slurp;
using test::TempFolder;
using Numbers = std::vector<double>;

SafeTensors parse(const std::string& file, const ReadOptions& options = {}) {
  return parse_torch(std::as_bytes(std::span(file)), "f", options);
}

// An old file whose object, keys and numbers these are.
std::string old_file(const std::string& rest) {
  return "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}q\0."s + rest;
}
const std::string no_keys = "\x80\x02].";
std::string pickled(const std::string& opcodes) {
  return old_file("\x80\x02" + opcodes + "." + no_keys);
}
std::string repeated(const std::string& part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}
std::string pickle_error(const std::string& opcodes) {
  return test::error([&] { parse(pickled(opcodes)); });
}

std::string number(uint64_t x, size_t width) { return {reinterpret_cast<const char*>(&x), width}; }
std::string text(const std::string& s) { return "X" + number(s.size(), 4) + s; }
std::string integer(int64_t x) { return "\x8a\x08" + number(uint64_t(x), 8); }
std::string tuple(std::initializer_list<int64_t> numbers) {
  std::string all = "(";
  for (const int64_t x : numbers) all += integer(x);
  return all + "t";
}
std::string storage(const std::string& type = "FloatStorage", int64_t numel = 2,
                    const std::string& key = "k") {
  return "(" + text("storage") + "ctorch\n" + type + "\n" + text(key) + text("cpu") +
         integer(numel) + "tQ";
}
std::string tensor(const std::string& of, int64_t offset, std::initializer_list<int64_t> shape,
                   std::initializer_list<int64_t> strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + of + integer(offset) + tuple(shape) +
         tuple(strides) + "\x89)tR";
}
// An old file of one tensor and its storage "k" of two f32.
std::string file_of(const std::string& object) {
  return old_file("\x80\x02" + object + ".\x80\x02]" + text("k") + "a." + number(2, 8) +
                  number(0x3f800000, 4) + number(0x40000000, 4));
}

// ---- reading

void expect_state(const std::string& name) {
  SCOPED_TRACE(name);
  const SafeTensors file = load(test::data_file(name));
  const StateDict& all = file.tensors;
  EXPECT_TRUE(std::ranges::is_sorted(all, {}, &StateDict::value_type::first));
  const auto values = [&](const char* n) { return to_vector(all.at(n)); };
  EXPECT_EQ(values("model.weight"), (Numbers{1.5, -2, 0.25, 4}));
  EXPECT_TRUE(all.at("model.tied").storage() == all.at("model.weight").storage());
  EXPECT_EQ(values("model.bias"), (Numbers{0.5, -0.5}));

  const Tensor grid = all.at("views.grid");
  EXPECT_EQ(grid.shape(), Shape({4, 6}));
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(grid.at(i), double(i));
  for (const char* n : {"views.turned", "views.row", "views.steps", "views.wide"})
    EXPECT_TRUE(all.at(n).storage() == grid.storage()) << n;
  EXPECT_EQ(all.at("views.turned").strides(), Shape({1, 6}));
  EXPECT_EQ(values("views.row"), (Numbers{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(values("views.steps"), (Numbers{7, 9, 11, 19, 21, 23}));
  EXPECT_EQ(values("views.wide"), (Numbers{0, 1, 2, 0, 1, 2}));
  EXPECT_TRUE(all.at("images").layout().is_channels_last());
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(all.at("images").at(i), double(i));

  for (const auto& [n, t] :
       std::initializer_list<std::pair<const char*, DType>>{{"float64", f64},
                                                            {"float32", f32},
                                                            {"float16", f16},
                                                            {"bfloat16", bf16},
                                                            {"int64", i64},
                                                            {"int32", i32},
                                                            {"uint8", u8},
                                                            {"bool", boolean}}) {
    EXPECT_EQ(all.at("dtypes."s + n).dtype(), t);
    EXPECT_EQ(to_vector(all.at("dtypes."s + n)), (Numbers{0, 1, 1}));
  }
  EXPECT_EQ(all.at("scalar").shape(), Shape());
  EXPECT_EQ(all.at("empty").shape(), Shape({0, 3}));
}

struct Expects {
  const StateDict& tensors;
  void operator()(const char* n, DType dtype, const Numbers& values, const Shape& shape) const {
    const Tensor t = tensors.at(n);
    EXPECT_EQ(t.dtype(), dtype) << n;
    EXPECT_EQ(t.shape(), shape) << n;
    EXPECT_EQ(to_vector(t), values) << n;
  }
};
void expect_numbers(const std::string& name) {
  SCOPED_TRACE(name);
  const SafeTensors file = load(test::data_file(name));
  const Expects is{file.tensors};
  is("epoch", i64, {3}, {});
  is("large", i64, {-1099511627776}, {});
  is("rate", f64, {0.125}, {});
  is("done", boolean, {1}, {});
  is("betas", f64, {0.9, 0.999}, {2});
  is("sizes", i64, {1, 2, 3}, {3});
  is("shape", i64, {4, 6}, {2});
  is("milestones.20", i64, {2}, {});
  is("mixed.0", f32, {1}, {1});
  is("mixed.3.4", f64, {5}, {});
  EXPECT_EQ(file.metadata, (Metadata{{"device", "cpu"}, {"mixed.2", "three"}, {"note", "größer"}}));
  EXPECT_EQ(file.tensors.size(), 31u);  // none for None and for empty containers
}

TEST(Torch, ReadsEveryFormatOfTorchSave) {
  for (const char* name : {"torch_state.pt", "torch_protocol4.pt", "torch_old.pt"}) {
    expect_state(name);
    expect_numbers(name);
  }
}

TEST(Torch, KeepsTheNamesOfAWrapper) {
  const StateDict state = load(test::data_file("torch_parallel.pt")).tensors;
  EXPECT_TRUE(state.contains("module.weight"));
  EXPECT_EQ(state.under("module.").at("bias").shape(), Shape({2}));
}

TEST(Torch, LeavesOutDtypesThatAreNotHereOrKeepsTheirBytes) {
  const std::string path = test::data_file("torch_dtypes.pt");
  EXPECT_ERROR(load(path),
               "tensors of dtypes that are not here: \"complex64\" (\"complex64\"); "
               "leave them out, {.skip = {\"complex64\", ...}}, or load their");
  EXPECT_EQ(load(path, {.skip = {"complex64"}}).tensors.size(), 4u);
  const SafeTensors kept = load(path, {.keep_bytes = true});
  EXPECT_EQ(kept.tensors.at("int16").dtype(), i16);
  EXPECT_EQ(to_vector(kept.tensors.at("int16")), (Numbers{1, 2, 3, 4}));
  const Tensor eight = kept.tensors.at("float8_e4m3fn");
  EXPECT_EQ(eight.dtype(), f8_e4m3);
  EXPECT_EQ(to_vector(eight), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(kept.tensors.at("complex64").numel(), 32);
  EXPECT_EQ(kept.tensors.at("uint16").dtype(), u16);
  ASSERT_EQ(kept.raw.size(), 1u);
  EXPECT_EQ(kept.raw[0].dtype, "complex64");
  EXPECT_EQ(kept.raw[0].shape, Shape({2, 2}));
}

TEST(Torch, ReadsValuesOfPythonAsData) {
  const SafeTensors file = load(test::data_file("torch_python.pt"), {.skip = {"refused.*"}});
  const Expects is{file.tensors};
  is("weight", f32, {1, 2, 3, 4}, {2, 2});
  is("args.lr", f64, {0.5}, {});
  is("args.more.depth", i64, {2, 3}, {2});
  is("counts.a", i64, {1}, {});
  is("counts.b", i64, {2}, {});
  is("bytes", u8, {0, 65, 128, 255}, {4});
  is("no_bytes", u8, {}, {0});
  is("array_of_bytes", u8, {144}, {1});
  is("numpy.f64", f64, {0.25}, {});
  is("numpy.f32", f32, {1.5}, {});
  is("numpy.i64", i64, {-3}, {});
  is("numpy.bool", boolean, {1}, {});
  is("numpy.grid", f32, {0, 1, 2, 3, 4, 5}, {2, 3});
  is("numpy.columns", f32, {0, 1, 2, 3, 4, 5}, {2, 3});
  is("numpy.none", i32, {}, {0, 2});
  is("numpy.scalar", u16, {7}, {});
  EXPECT_EQ(file.tensors.at("numpy.columns").layout().strides, Shape({1, 2}));
  EXPECT_EQ(file.metadata, (Metadata{{"args.data", "digits"}}));
  EXPECT_EQ(file.tensors.size(), 16u);
}

// Each alone is an error, and none where it is left out.
TEST(Torch, LeavesOutValuesThatAreUnknown) {
  const std::pair<const char*, const char*> unread[] = {
      {"words",
       "\"numpy.dtype.U1\" is not among the names of Python that are read; leave it out, "
       "{.skip = {\"refused.words\"}}, or save a state_dict()"},
      {"complex", "\"__builtin__.complex\" is not among"},
      {"path", "\"pathlib.PurePosixPath\" is not among"},
      {"net", "\"torch.nn.modules.linear.Linear\" is not among"},
      {"function", " is not among"},
      {"keys", "\"refused.keys\": a key of this dict is neither a text nor an integer: {.skip"},
      {"large", "\"refused.large\" is neither a tensor nor a number of 64 bits nor a text: {.skip"},
      {"list.1", "\"pathlib.PurePosixPath\" is not among"},
      {"quantized", "\"torch._utils._rebuild_qtensor\" is not among"}};
  for (const auto& [name, message] : unread) {
    ReadOptions others;
    for (const auto& [other, unused] : unread)
      if (other != name) others.skip.push_back("refused."s + other);
    EXPECT_ERROR(load(test::data_file("torch_python.pt"), others), message);
    others.skip.push_back("refused."s + name);
    EXPECT_EQ(load(test::data_file("torch_python.pt"), others).tensors.size(), 17u);  // and list.0
  }
}

TEST(Torch, ReadsATensorAlone) {
  const StateDict one = parse(file_of(tensor(storage(), 0, {2}, {1}))).tensors;
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].first, "");
  EXPECT_EQ(to_vector(one[0].second), (Numbers{1, 2}));
}

// With _use_new_zipfile_serialization=False; protocols 4 and 5 put pickles in frames.
TEST(Torch, ReadsOldFilesOfEachProtocol) {
  const TempFolder folder;
  const std::string rest = file_of(tensor(storage(), 0, {2}, {1})).substr(2);
  const std::string frame = "\x95" + number(13, 8);
  for (const std::string& begin : {"\x80\x03"s, "\x80\x04" + frame, "\x80\x05" + frame}) {
    test::spit(folder / "a", begin + rest);
    EXPECT_EQ(to_vector(load(folder / "a").tensors.at("")), (Numbers{1, 2}));
  }
  EXPECT_ERROR(parse("\x80\x06" + rest), "f: ");
  EXPECT_ERROR(parse("\x80\x04\x95\x0d"), "f: ");
}

// PyTorch's z.conj().imag is z's numbers, with a mark that each has the other sign.
TEST(Torch, HeedsMarksOfViews) {
  const auto marked = [](const std::string& type, const std::string& mark, int64_t stride) {
    std::string t = tensor(storage(type), 0, {2}, {stride});
    return t.insert(t.size() - 2, "}" + text(mark) + "\x88s");
  };
  const auto read = [&](const std::string& object) { return parse(file_of(object)).tensors; };
  EXPECT_EQ(to_vector(read(marked("FloatStorage", "neg", 1)).at("")), (Numbers{-1, -2}));
  EXPECT_EQ(to_vector(read(marked("FloatStorage", "neg", 0)).at("")), (Numbers{-1, -1}));
  EXPECT_EQ(to_vector(read(marked("FloatStorage", "other", 1)).at("")), (Numbers{1, 2}));
  const StateDict both = read("}(" + text("a") + tensor(storage(), 0, {2}, {1}) + text("b") +
                              marked("FloatStorage", "neg", 1) + "u");
  EXPECT_EQ(to_vector(both.at("a")), (Numbers{1, 2}));
  EXPECT_EQ(to_vector(both.at("b")), (Numbers{-1, -2}));

  const std::string untyped = storage("UntypedStorage", 8);  // of _rebuild_tensor_v3
  const auto third = [&](const std::string& dtype) {
    return file_of("ctorch._utils\n_rebuild_tensor_v3\n(" + untyped + integer(0) + tuple({2}) +
                   tuple({1}) + "\x89)ctorch\n" + dtype + "\n}" + text("neg") + "\x88stR");
  };
  std::string file = third("float32");
  file.replace(file.find("]X") + 9, 8, number(8, 8));  // as bytes
  EXPECT_EQ(to_vector(parse(file).tensors.at("")), (Numbers{-1, -2}));

  const std::string wrong =
      " that is only marked as conjugated or negated: save its .resolve_conj()";
  EXPECT_ERROR(read(marked("IntStorage", "neg", 1)), "f: tensor \"\": int32" + wrong);
  EXPECT_ERROR(read(marked("FloatStorage", "conj", 1)), "f: tensor \"\": float32" + wrong);
  std::string complex = marked("ComplexFloatStorage", "conj", 1);
  complex = old_file("\x80\x02" + complex + ".\x80\x02]" + text("k") + "a." + number(2, 8) +
                     std::string(16, '\1'));
  EXPECT_ERROR(parse(complex), "tensors of dtypes that are not here: \"\" (\"complex64\")");
  EXPECT_ERROR(parse(complex, {.keep_bytes = true}), "f: tensor \"\": complex64" + wrong);

  std::string wide = tensor(storage(), 0, {1 << 30, 1 << 20}, {0, 0});  // takes memory as a copy
  EXPECT_EQ(read(wide).at("").numel(), int64_t(1) << 50);
  wide.insert(wide.size() - 2, "}" + text("neg") + "\x88s");
  EXPECT_ERROR(read(wide), "needs more than 33554432 bytes of memory (raise max_memory)");
}

// Newer dtypes have no storages of their own.
TEST(Torch, ReadsAStorageAsSeveralDtypes) {
  const auto view = [](const std::string& dtype, int64_t size) {
    return "ctorch._utils\n_rebuild_tensor_v3\n(" + storage("UntypedStorage", 8) + integer(0) +
           tuple({size}) + tuple({1}) + "\x89)ctorch\n" + dtype + "\ntR";
  };
  std::string file =
      file_of("}(" + text("a") + view("uint16", 4) + text("b") + view("float8_e4m3fn", 8) +
              text("c") + view("float32", 2) + text("d") + view("complex64", 1) + "u");
  file.replace(file.find("]X") + 9, 8, number(8, 8));  // as bytes
  const StateDict all = parse(file, {.keep_bytes = true}).tensors;
  EXPECT_EQ(to_vector(all.at("a")), (Numbers{0, 0x3f80, 0, 0x4000}));
  EXPECT_EQ(to_vector(all.at("b")), (Numbers{0, 0, -0.0, 1.875, 0, 0, 0, 2}));
  EXPECT_EQ(to_vector(all.at("c")), (Numbers{1, 2}));
  EXPECT_EQ(all.at("d").nbytes(), 8u);
  for (const char* name : {"b", "c", "d"})
    EXPECT_TRUE(all.at(name).storage() == all.at("a").storage()) << name;
}

TEST(Torch, KeepsTheNumberOfADevice) {
  const auto device = [](const std::string& number) {
    return "ctorch\ndevice\n(" + text("cuda") + number + "tR";
  };
  const SafeTensors file = parse(
      pickled("}(" + text("a") + device("") + text("b") + device("K\1") + device("K\2") + "K\7u"));
  EXPECT_EQ(file.metadata, (Metadata{{"a", "cuda"}, {"b", "cuda:1"}}));
  EXPECT_EQ(file.tensors.at("cuda:2").at(0), 7);
}

// Old files have their numbers one after the other, so those that are left out must be known, too.
TEST(Torch, LeavesOutUnknownValuesOfOldFiles) {
  const std::string module = "(" + text("module") + "ctorch.nn\nLinear\n" + text("linear.py") +
                             text("class Linear") + "tQ)\x81}" + text("weight") +
                             tensor(storage("FloatStorage", 1, "m"), 0, {1}, {1}) + "sb";
  const std::string file = old_file(
      "\x80\x02}(" + text("a") + tensor(storage("FloatStorage", 1, "a"), 0, {1}, {1}) + text("m") +
      module + text("q") + "ctorch._utils\n_rebuild_qtensor\n(" + storage("QInt32Storage", 1, "q") +
      "tRu.\x80\x02](" + text("q") + text("a") + text("m") + "e." + number(1, 8) + number(5, 4) +
      number(1, 8) + number(0x3f800000, 4) + number(1, 8) + number(0x40000000, 4));
  EXPECT_ERROR(parse(file, {.skip = {"q"}}),
               "\"torch.nn.Linear\" is not among the names of Python that are read; leave it out, "
               "{.skip = {\"m\"}}");
  EXPECT_ERROR(parse(file, {.skip = {"m"}}), "\"torch._utils._rebuild_qtensor\" is not among");
  const StateDict rest = parse(file, {.skip = {"m", "q"}}).tensors;
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest.at("a").at(0), 1);
}

// ---- hostile files

TEST(Torch, RunsNothing) {
  EXPECT_NE(pickle_error("cos\nsystem\n" + text("ls") + "\x85R")
                .find("f: pickle: near byte 13: \"os.system\" is not among the names of Python"),
            std::string::npos);
  for (const char* name : {"builtins\neval\n", "torch\nload\n", "torch.nn\nLinear\n",
                           "torch._utils\n_rebuild_qtensor\n", "torch.cuda\nfloat32\n", "\n\n"})
    EXPECT_NE(pickle_error("c"s + name).find("is not among the names of Python"), std::string::npos)
        << name;
  EXPECT_NE(pickle_error(text("os") + text("system") + "\x93").find("\"os.system\" is not"),
            std::string::npos);
  const TempFolder folder;  // nor what is left out
  const std::string call = "cos\nsystem\n" + text("touch " + (folder / "ran")) + "\x85R";
  const std::string file =
      pickled("}(" + text("x") + call + "}(" + text("k") + call + "ub" + text("y") + "K\1u");
  EXPECT_EQ(parse(file, {.skip = {"x"}}).tensors.size(), 1u);
  EXPECT_EQ(folder.count(), 0u);
}

std::string encoded(const std::string& of, const std::string& encoding) {
  return "c_codecs\nencode\n(" + of + text(encoding) + "tR";
}
std::string newobj_ex(const std::string& type, const std::string& options) {
  return "c" + type + "\n)" + options + "\x92";
}
std::string numpy_dtype(const std::string& code, const std::string& order = "<") {
  return "cnumpy\ndtype\n(" + text(code) + "\x89\x88tR(K\3" + text(order) + "NNNK\1K\1tb";
}
std::string array(const std::string& type = "cnumpy\nndarray\n") {
  return "cnumpy._core.multiarray\n_reconstruct\n(" + type + "K\0\x85"s + "C\1btR";
}
// A state of so many bytes of 2.
std::string state(std::initializer_list<int64_t> shape, const std::string& dtype, size_t bytes) {
  return "(K\1" + tuple(shape) + numpy_dtype(dtype) + "\x89" + "C" + number(bytes, 1) +
         std::string(bytes, '\2') + "tb";
}

// As NumPy writes an array in protocol 5: so many bytes of 2, and the order of elements.
std::string array_of_bytes(std::initializer_list<int64_t> shape, const std::string& dtype,
                           size_t bytes, const std::string& order) {
  return "cnumpy._core.numeric\n_frombuffer\n(\x96" + number(bytes, 8) + std::string(bytes, '\2') +
         numpy_dtype(dtype) + tuple(shape) + text(order) + "tR";
}

// Two arrays of one dtype, which gets its byte order after the memo has it.
TEST(Torch, ReadsBigEndianArrays) {
  std::string dtype = numpy_dtype("i4", ">");
  dtype.insert(dtype.find("(K\3"), "q\7");
  const auto state_of = [&](const std::string& type) {
    return "(K\1" + tuple({2}) + type + "\x89" + "C\x08" + "\0\0\1\2\0\0\0\3"s + "tb";
  };
  const StateDict both = parse(pickled("}(" + text("a") + array() + state_of(dtype) + text("b") +
                                       array() + state_of("h\7") + "u"))
                             .tensors;
  EXPECT_EQ(to_vector(both.at("a")), (Numbers{258, 3}));
  EXPECT_EQ(to_vector(both.at("b")), (Numbers{258, 3}));
  const std::string newer = "cnumpy._core.numeric\n_frombuffer\n(\x96" + number(4, 8) +
                            "\0\0\1\2"s + numpy_dtype("i4", ">") + tuple({1}) + text("C") + "tR";
  EXPECT_EQ(to_vector(parse(pickled(newer)).tensors.at("")), (Numbers{258}));
}

TEST(Torch, ReadsAFrozensetOfEachProtocol) {
  for (const std::string module : {"builtins", "__builtin__"}) {
    const std::string set = "c" + module + "\nfrozenset\n](K\1K\2e\x85R";
    EXPECT_EQ(to_vector(parse(pickled("}" + text("a") + set + "s")).tensors.at("a")),
              (Numbers{1, 2}));
  }
}

// Each is an error that names it, and none where it is left out, nor is what comes after it.
TEST(Torch, LeavesOutWhatHasNoPlaceHere) {
  const std::string nine = tensor(storage("FloatStorage", 2), 0, {1, 1, 1, 1, 1, 1, 1, 1, 2},
                                  {2, 2, 2, 2, 2, 2, 2, 2, 1});
  const std::string skip = ": {.skip = {\"a\"}}",
                    ranks = "\"a\" has 9 dimensions, more than 8: leave it out, {.skip";
  const std::pair<std::string, std::string> unread[] = {
      {"\x8b" + number(300, 4) + std::string(300, '\1'),
       "nor a number of 64 bits nor a text" + skip},
      {newobj_ex("m\nNamed", "}" + text("k") + "K\1s"), "\"m.Named\" is not among the names"},
      {nine, ranks},
      {"ctorch._utils\n_rebuild_parameter\n(" + nine + "\x89)tR", ranks},
      {array() + state({1, 1, 1, 1, 1, 1, 1, 1, 1}, "u1", 1), ranks},
      {array_of_bytes({1, 1, 1, 1, 1, 1, 1, 1, 1}, "u1", 1, "C"), ranks}};
  for (const auto& [object, message] : unread) {
    std::string file =
        file_of("}(" + text("a") + object + text("w") + tensor(storage(), 0, {2}, {1}) + "u");
    EXPECT_ERROR(parse(file), message);
    EXPECT_EQ(to_vector(parse(file, {.skip = {"a", "w.*"}}).tensors.at("w")), (Numbers{1, 2}));
  }
}

// Such as a list that holds itself, which has names without end.
TEST(Torch, LeavesOutNamesThatItCannotMake) {
  std::string lists = "(K\1Nt";
  for (char i = 0; i < 30; ++i) lists += "q"s + i + "0(h" + i + "h" + i + "t";
  const std::string twice = "}(" + text("1") + "K\1K\1K\2u";
  for (const std::string& object : {"]q\1h\1a"s, lists, twice}) {
    const std::string file = pickled("}(" + text("a") + object + text("w") + "K\1u");
    EXPECT_NE(test::error([&] { parse(file); }), "no error");
    EXPECT_EQ(parse(file, {.skip = {"a.*"}}).tensors.size(), 1u);
    EXPECT_TRUE(parse(file, {.skip = {"*"}}).tensors.empty());
    EXPECT_NE(test::error([&] { parse(file, {.skip = {"a", "a.", "w.*"}}); }), "no error");
  }
}

TEST(Torch, ReadsArraysOfProtocol5) {
  const auto read = [](const std::string& order) {
    std::string array = array_of_bytes({2, 3}, "u1", 6, order);
    array[array.find('\2') + 1] = '\1';
    return parse(pickled(array)).tensors.at("");
  };
  EXPECT_EQ(read("C").dtype(), u8);
  EXPECT_EQ(to_vector(read("C")), (Numbers{2, 1, 2, 2, 2, 2}));
  EXPECT_EQ(to_vector(read("F")), (Numbers{2, 2, 2, 1, 2, 2}));
}

TEST(Torch, RefusesHostilePickles) {
  struct Case {
    std::string opcodes, message;
  };
  const std::string dict = "ccollections\nOrderedDict\n";
  const Case cases[] = {
      {"\xff", "opcode 0xff is not among those that are read"},
      {"I1\n", "opcode 0x49 is not among"},
      {"\x80\x06", "a protocol above 5"},
      {"", "nothing is on the stack"},
      {"0", "nothing is on the stack"},
      {"(", "nothing is on the stack"},
      {"t", "no mark is on the stack"},
      {"Na", "nothing is on the stack"},
      {"NNa", "a value of another type is on the stack"},
      {"NNb", "a value of another type"},
      {"h\5", "the memo has no such number"},
      {"Nr\xff\xff\xff\x7f"s, "a number of the memo is larger than the pickle"},
      {"(Nd", "a dict has a key without a value"},
      {"}(Nu", "a dict has a key without a value"},
      {"X\xff\xff\xff\x7f"s, "it ends early"},
      {"\x8d" + number(UINT64_MAX, 8), "a text of more than 4 GB"},
      {"cos", "it ends early"},
      {"})R", "a value of another type"},
      {dict + "(" + "NtR", "argument 0 is missing or of another type"},
      {dict + "(](NtatR", "an item of a dict is not a pair"},
      {"ctorch\nTensor\n)R", "a type is called, which makes nothing"},
      {"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nTensor\nN)tR", "no tensor is rebuilt"},
      {"(" + text("module") + "tQ", "it holds a \"module\", not tensors alone"},
      {"(" + text("storage") + "ctorch\nTensor\n" + text("k") + text("cpu") + "K\1tQ",
       "a storage has no type"},
      {storage("FloatStorage", -1), "a storage's size is out of range"},
      {tensor(storage(), -1, {1}, {1}), "a tensor's offset or number of strides is wrong"},
      {tensor(storage(), 0, {1}, {}), "a tensor's offset or number of strides is wrong"},
      {tensor(storage(), 0, {-1}, {1}), "a tensor's size or stride is negative"},
      {tensor(storage(), 0, {2}, {-1}), "a tensor's size or stride is negative"},
      {tensor(storage(), 0, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {}),
       "f: \"\" has 9 dimensions, more than 8: leave it out, {.skip"},
      {tensor(storage(), 0, {1}, {1, 1, 1, 1, 1, 1, 1, 1, 1}), "more than 8 dimensions"},
      {tensor(storage(), 1, {2}, {1}),
       "a tensor [2] with strides [1] at 1 reaches beyond its storage of 2"},
      {tensor(storage(), 0, {INT64_MAX}, {INT64_MAX}), "reaches beyond its storage of 2"},
      {tensor(storage(), 0, {1 << 30, 1 << 30, 1 << 30}, {0, 0, 0}), "reaches beyond"},
      {tensor(storage("UntypedStorage"), 0, {1}, {1}), "a tensor's dtype is not its storage's"},
      {tensor(storage(), 0, {2}, {1}), "f: tensor \"\": the file has no storage \"k\""},
      {"}(NNu", "f: \"\": a key of this dict is neither a text nor an integer"},
      {"}(" + text("a") + "K\1" + text("a") + "K\2u", "f: duplicate name \"a\""},
      {"}(" + text("a.b") + "K\1" + text("a") + "}(" + text("b") + "K\2uu",
       "duplicate name \"a.b\""},
      {"\x8a\x09" + std::string(9, '\1'), "is neither a tensor nor a number of 64 bits nor a text"},
      {"cbuiltins\nset\n", "is neither a tensor"},
      {"]q\1h\1a", "dicts and lists nest deeper than 64"},
      {storage(), "is neither a tensor"},
      {"ccollections\nOrderedDict\n)R" + storage() + "b" + storage(), "is neither a tensor"},
      {"cos\nsystem\nN\x85RNa", "\"os.system\" is not among"},
      {"cos\nsystem\n(Nu", "a dict has a key without a value"},
      {encoded(text("a"), "rot13"), "\"_codecs.encode\" is not among"},
      {encoded(text("\u20ac"), "latin1"), "bytes are no text of Latin-1"},
      {encoded(text("\xc3"), "latin1"), "bytes are no text of Latin-1"},
      {encoded("K\1", "latin1"), "argument 0 is missing or of another type"},
      {numpy_dtype("f8", ">"), "is neither a tensor"},
      {"cnumpy\ndtype\n(" + text("f8") + "tRNb", "a dtype of NumPy has no state"},
      {newobj_ex("torch\nTensor", "}"), "a type is called, which makes nothing"},
      {"\x8b\xff\xff\xff\xff"s, "it ends early"},
      {numpy_dtype("f8"), "is neither a tensor"},
      {array("cbuiltins\nset\n"), "an array is of another type"},
      {array(), "f: tensor \"\": an array has no bytes"},
      {array() + "Nb", "an array has no state"},
      {array() + "q\1(K\1" + tuple({1}) + numpy_dtype("f8") + "\x89h\1tb", "has no bytes"},
      {array() + "K\1\x85" + "b", "argument 1 is missing or of another type"},
      {array() + state({2}, "f8", 8), "f: tensor \"\": an array [2] of f64 has 8 bytes"},
      {array() + state({1 << 30, 1 << 30, 1 << 30}, "f8", 8), "of f64 has 8 bytes"},
      {array() + state({-1}, "f8", 8), "a tensor's size or stride is negative"},
      {array() + state({8}, "b1", 8), "f: tensor \"\": byte 0 is not a bool"},
      {array() + state({1}, "O8", 8), "\"numpy.dtype.O8\" is not among"},
      {array_of_bytes({2}, "f8", 8, "C"), "f: tensor \"\": an array [2] of f64 has 8 bytes"},
      {array_of_bytes({1}, "O8", 8, "C"), "\"numpy.dtype.O8\" is not among"},
      {"cnumpy.core.numeric\n_frombuffer\n)R", "argument 0 is missing or of another type"},
  };
  for (const Case& c : cases) {
    const std::string message = pickle_error(c.opcodes);
    EXPECT_NE(message.find(c.message), std::string::npos)
        << "message: " << message << "\nwanted: " << c.message;
  }
}

TEST(Torch, RefusesHostileStorages) {
  const auto error = [](const std::string& file) { return test::error([&] { parse(file); }); };
  const auto has = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nwanted: " << part;
  };
  has(error(file_of(tensor(storage("FloatStorage", 3), 0, {2}, {1}))),
      "its storage \"k\" has 8 bytes, not 3 elements of 4");
  has(error(file_of("(" + tensor(storage(), 0, {2}, {1}) +
                    tensor(storage("IntStorage"), 0, {1}, {1}) + "t")),
      "its storage is float32 and int32");
  has(error(file_of(tensor(storage("BoolStorage"), 0, {2}, {1}))), "its last 6 bytes belong to no");
  has(error(file_of("}")), "no tensor needs its storage \"k\"");
  const std::string good = file_of(tensor(storage(), 0, {2}, {1}));
  has(error(good.substr(0, good.size() - 1)), "its storage \"k\" of 2 elements does not fit it");
  has(error(old_file("\x80\x02].\x80\x02K\1.")), "the keys of its storages are not a list");
  std::string other = good;
  other[other.find("M\xe9")] = 'K';
  EXPECT_NE(error(other), "no error");
  has(error(old_file("\x80\x02" + tensor(storage("BoolStorage", 1), 0, {1}, {1}) + ".\x80\x02]" +
                     text("k") + "a." + number(1, 8) + "\2")),
      "byte 0 of its storage is not a bool");
  has(error("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02K\1."),
      "its protocol is not 1001");
  has(error("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}" +
            text("little_endian") + "\x89s."),
      "its byte order is \"big\", not little");
}

std::string zip_file(const std::vector<std::pair<std::string, std::string>>& entries) {
  const TempFolder folder;
  AtomicFile file(folder / "f");
  ZipWriter zip(file);
  for (const auto& [name, content] : entries)
    zip.add(name, [&text = content](const auto& sink) { sink(std::as_bytes(std::span(text))); });
  zip.finish();
  file.commit();
  return slurp(folder / "f");
}

TEST(Torch, RefusesHostileArchives) {
  const std::string empty = "\x80\x02}.";
  const auto error = [](const std::vector<std::pair<std::string, std::string>>& entries) {
    return test::error([&] { parse(zip_file(entries)); });
  };
  EXPECT_TRUE(error({{"a.txt", ""}}).starts_with("f: not a file of torch.save, but a zip archive"));
  EXPECT_TRUE(error({{"m/data.pkl", empty}, {"m/constants.pkl", ""}})
                  .starts_with("f: not a file of torch.save, but a TorchScript archive"));
  EXPECT_TRUE(error({{"m/data.pkl", empty}, {"m/byteorder", "big"}})
                  .starts_with("f: its byte order is \"big\", not little"));
  EXPECT_TRUE(error({{"m/data.pkl", empty}, {"m/data.pkl", empty}})
                  .starts_with("f: duplicate entry \"m/data.pkl\""));
  EXPECT_TRUE(error({{"m/data.pkl", empty}, {"m/byteorder", std::string(101, 'x')}})
                  .starts_with("f: byteorder of 101 bytes is above the limit of 100"));
  EXPECT_TRUE(error({{"m/data.pkl", "pickle"}}).find("begins with no opcode PROTO") !=
              std::string::npos);
  EXPECT_EQ(error({{"m/data.pkl", empty}}), "no error");
}

TEST(Torch, TakesMemoryByTheSizeOfTheFile) {
  EXPECT_ERROR(parse(pickled(std::string(2'000'000, '}'))),
               "f: pickle: takes more than 40000680 bytes of memory (raise max_memory)");
  std::string lists = "(K\1Nt";  // a tuple of ten of ten of ten and so on, in a few bytes
  for (char i = 0; i < 30; ++i) {
    lists += "q"s + i + "(";
    for (int k = 0; k < 10; ++k) lists += "h"s + i;
    lists += "t";
  }
  EXPECT_ERROR(parse(pickled(lists)), "f: takes more than 33554432 bytes of memory");
  const std::string large =
      old_file("\x80\x02" + tensor(storage("FloatStorage", 5000), 0, {1}, {1}) + ".\x80\x02]" +
               text("k") + "a." + number(5000, 8) + std::string(20'000, '\0'));
  EXPECT_EQ(parse(large).tensors.size(), 1u);
  EXPECT_ERROR(parse(large, {.max_memory = 9000}),
               "needs more than 9000 bytes of memory (raise max_memory)");
}

TEST(Torch, SurvivesDamage) {
  const auto read = [](auto bytes) { parse_torch(bytes, "f", {.skip = {"refused.*"}}); };
  for (const char* name : {"torch_state.pt", "torch_old.pt", "torch_python.pt"}) {
    const std::string file = slurp(test::data_file(name));
    test::survive_damage(file, "().}]RtQqhb", read);
    test::refuse_truncation(file, read);
  }
}

// ---- writing

TEST(Torch, RoundTrips) {
  const TempFolder folder;
  StateDict state = load(test::data_file("torch_state.pt")).tensors;
  for (const DType t : {f8_e4m3, f8_e5m2, f8_e8m0, i16, i8, u16, u32})  // by name
    state.emplace_back("z." + std::string(mixtape::name(t)), from({1, 2, 0.25, 64}, {2, 2}, t));
  for (const char* name : {"x.pt", "x.pth", "x.bin", "W.PT"}) {
    save(folder / name, state, {{"note", "größer"}});
    const SafeTensors back = load(folder / name);
    EXPECT_EQ(back.metadata, (Metadata{{"note", "größer"}}));
    ASSERT_EQ(back.tensors.size(), state.size());
    for (size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(back.tensors[i].first, state[i].first);
      EXPECT_EQ(back.tensors[i].second.dtype(), state[i].second.dtype());
      EXPECT_EQ(back.tensors[i].second.shape(), state[i].second.shape());
      EXPECT_EQ(to_vector(back.tensors[i].second), to_vector(state[i].second));
    }
    const StateDict& all = back.tensors;
    EXPECT_TRUE(all.at("model.tied").storage() == all.at("model.weight").storage());
    EXPECT_FALSE(all.at("views.row").storage() == all.at("views.grid").storage());
  }
  save(folder / "none.pt", {});
  EXPECT_TRUE(load(folder / "none.pt").tensors.empty());
  EXPECT_ERROR(save(folder / "x.pt", StateDict{{"a", Tensor({1}, f32)}}, {{"a", "b"}}),
               "duplicate or reserved name \"a\"");
  EXPECT_ERROR(save(folder / "x.pt", StateDict{{"a", Tensor()}}), "\"a\" is undefined");
}

TEST(Torch, OtherNamesAreOfOtherWriters) {
  const TempFolder folder;
  for (const std::string name : {"x.gguf", "X.GGUF"})
    EXPECT_ERROR(save(folder / name, StateDict{{"a", Tensor({1}, f32)}}),
                 name + ": train::save_gguf writes models, io::save_gguf tensors");
}

TEST(Torch, ShardsMayBeOfTorchSave) {
  const TempFolder folder;
  save(folder / "a.bin", StateDict{{"x", from({1}, {1})}});
  save(folder / "b.bin", StateDict{{"y", from({2}, {1})}});
  write_file(folder / "m.bin.index.json", R"({"weight_map": {"x": "a.bin", "y": "b.bin"}})");
  EXPECT_EQ(load(folder / "m.bin.index.json").tensors.at("y").at(0), 2);
}

TEST(Torch, ExchangesWithPyTorch) {
  if (!test::python("import torch"))
    GTEST_SKIP() << "needs Python with torch (MIXTAPE_PYTHON names the interpreter)";
  const TempFolder folder;
  StateDict state = load(test::data_file("torch_state.pt")).tensors;
  for (const DType t : {f8_e4m3, f8_e5m2})
    state.emplace_back(std::string(mixtape::name(t)), from({1.5, 2, 0.25}, {3}, t));
  for (const DType t : {i8, i16, u16, u32})
    state.emplace_back(std::string(mixtape::name(t)), from({0, 1, 100}, {3}, t));
  save(folder / "ours.pt", state, {{"note", "größer"}});
  EXPECT_TRUE(test::python(R"(
import sys, zipfile, torch
path = sys.argv[1] + "/ours.pt"
assert zipfile.ZipFile(path).testzip() is None
for how in ({}, {"mmap": True}):
    ours = torch.load(path, weights_only=True, **how)
    assert ours["note"] == "gr\u00f6\u00dfer" and ours["epoch"].item() == 3 and ours["betas"].tolist() == [0.9, 0.999]
    assert ours["views.turned"].tolist() == torch.arange(24.0).reshape(4, 6).t().tolist()
    assert ours["model.tied"].data_ptr() == ours["model.weight"].data_ptr()
    for name in "float64 float32 float16 bfloat16 int64 int32 uint8 bool".split():
        t = ours["dtypes." + name]
        assert t.dtype == getattr(torch, name) and t.tolist() == [0, 1, 1]
    assert ours["f8_e4m3"].dtype == torch.float8_e4m3fn and ours["f8_e5m2"].dtype == torch.float8_e5m2
    assert ours["f8_e4m3"].float().tolist() == ours["f8_e5m2"].float().tolist() == [1.5, 2, 0.25]
    for ours_name, name in {"i8": "int8", "i16": "int16", "u16": "uint16", "u32": "uint32"}.items():
        assert ours[ours_name].dtype == getattr(torch, name) and ours[ours_name].tolist() == [0, 1, 100]
    assert ours["empty"].shape == (0, 3) and ours["scalar"].shape == ()
z = torch.tensor([1 + 2j, 3 - 4j])
views = {"imag": z.conj().imag, "half": z.to(torch.complex32).conj().imag, "real": z.real, "device": torch.device("cuda:1"), "frozen": frozenset([1.5])}
shorts = torch.arange(4).to(torch.uint16)
views.update(shorts=shorts, bytes=shorts.view(torch.float8_e4m3fn), long=1 << 3000, high=torch.ones([1] * 9))
torch.save(views, sys.argv[1] + "/zip.pt")
for protocol in (2, 3, 4, 5):
    torch.save(views, f"{sys.argv[1]}/{protocol}.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=False))",
                           folder.path()));
  for (const char* name : {"zip.pt", "2.pt", "3.pt", "4.pt", "5.pt"}) {
    EXPECT_ERROR(load(folder / name, {.skip = {"long"}}), "\"high\" has 9 dimensions");
    const SafeTensors theirs = load(folder / name, {.skip = {"long", "high"}});
    EXPECT_EQ(to_vector(theirs.tensors.at("imag")), (Numbers{-2, 4})) << name;
    EXPECT_EQ(to_vector(theirs.tensors.at("half")), (Numbers{-2, 4})) << name;
    EXPECT_EQ(to_vector(theirs.tensors.at("real")), (Numbers{1, 3})) << name;
    EXPECT_EQ(theirs.metadata.at("device"), "cuda:1") << name;
    EXPECT_EQ(to_vector(theirs.tensors.at("frozen")), (Numbers{1.5})) << name;
    EXPECT_EQ(to_vector(theirs.tensors.at("shorts")), (Numbers{0, 1, 2, 3})) << name;
    EXPECT_EQ(theirs.tensors.at("bytes").shape(), Shape({8})) << name;
  }
}

}  // namespace torch_test
}  // namespace mixtape::io
