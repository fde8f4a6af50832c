#pragma once
// Models that travel in PyTorch's files, both ways: theirs to ours, and ours to theirs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/safetensors.h"
#include "tests/support/modules_reference.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace mixtape::test {

// The inputs of a file, and what the model, in evaluation, makes of them.
inline std::pair<Tensors, Tensors> evaluated(const Model& m, const StateDict& file) {
  const NoGrad off;
  m.module->eval();
  Tensors inputs;
  for (const auto& [name, x] : file.under("inputs.")) inputs.push_back(x);
  return {inputs, m.run(inputs)};
}

// Loads what torch.save wrote of each model that nets() of this module of tests/data/ makes, and
// compares outputs; then lets PyTorch do the same with a file that io::save wrote. Skips the test
// if Python lacks `packages`.
inline void expect_travels(const Models& models, const std::string& module,
                           const std::string& packages = "torch") {
  if (!python("import " + packages))
    GTEST_SKIP() << "needs Python with " << packages << " (MIXTAPE_PYTHON names the interpreter)";
  const TempFolder folder;
  const auto call = [&](const std::string& function) {
    return python(fmt::format("import sys; sys.path.insert(0, \"{}\"); import modules_reference, "
                              "{}; modules_reference.{}(sys.argv[1], {}.nets())",
                              data_file(""), module, function, module),
                  folder.path());
  };
  const DefaultDevice here(Device::cpu());
  ASSERT_TRUE(call("write_files"));
  int files = 0;
  for (const auto& [name, make] : models) {
    if (!std::filesystem::exists(folder / (name + ".pt"))) continue;
    SCOPED_TRACE(name);
    ++files;
    const StateDict theirs = io::load(folder / (name + ".pt")).tensors;
    const Model loaded = make();
    loaded.module->load_state_dict(theirs.under("state."));
    const auto [inputs, outputs] = evaluated(loaded, theirs);
    ASSERT_EQ(theirs.under("outputs.").size(), outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(allclose(outputs[i], theirs.at(fmt::format("outputs.{}", i)), 1e-5, 1e-5));
    const Model fresh = make();
    StateDict ours;
    ours.add("state.", fresh.module->state_dict());
    for (size_t i = 0; i < inputs.size(); ++i)
      ours.emplace_back(fmt::format("inputs.{}", i), inputs[i]);
    const Tensors made = evaluated(fresh, theirs).second;
    for (size_t i = 0; i < made.size(); ++i)
      ours.emplace_back(fmt::format("outputs.{}", i), made[i]);
    io::save(folder / (name + ".ours.pt"), ours);
  }
  EXPECT_EQ(size_t(files) * 2, folder.count());  // each of theirs has one of ours
  EXPECT_TRUE(call("check_files"));
}

}  // namespace mixtape::test
