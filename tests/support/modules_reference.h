#pragma once
// A module against PyTorch's module of the same name: parameters by name and shape and, with equal
// weights, outputs and gradients. Reads modules_reference.json, models_reference.json,
// llama_reference.json and more_reference.json.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "nn/nn.h"
#include "tests/support/reference.h"

namespace mixtape::test {

using nn::Tensors;

// A module and how to call it.
struct Model {
  std::shared_ptr<nn::ModuleBase> module;
  std::function<Tensors(const Tensors&)> run;
};

template <class M, class F>
Model model(M made, F run) {
  const auto m = std::make_shared<M>(std::move(made));
  return {m, [m, run](const Tensors& x) -> Tensors { return run(*m, x); }};
}
// One tensor in, one out.
template <class M>
Model model(M made) {
  return model(std::move(made), [](const M& m, const Tensors& x) { return Tensors{m(x.at(0))}; });
}

inline Tensor tensor(const json& j, DType dtype = f64) {
  return from(j.at("values").get<std::vector<double>>(), shape_of(j), dtype);
}

inline void expect_close(const Tensor& got, const json& want, const std::string& what) {
  const Tensor expected = tensor(want);
  ASSERT_TRUE(got) << what << " is absent";
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  for (int64_t i = 0; i < got.numel(); ++i)
    ASSERT_NEAR(got.at(i), expected.at(i), 1e-10 * (1 + std::abs(expected.at(i))))
        << what << ", element " << i;
}
inline void expect_close(const Tensors& got, const json& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    expect_close(got[i], want[i], what + " " + std::to_string(i));
}

inline void compare(const Model& m, const json& c) {
  m.module->to(f64);
  StateDict theirs;
  for (const json& t : c.at("state"))
    theirs.emplace_back(t.at("name"), tensor(t, t.at("shape").empty() ? i64 : f64));
  const StateDict ours = m.module->state_dict();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].first, theirs[i].first);
    EXPECT_EQ(ours[i].second.shape(), theirs[i].second.shape()) << ours[i].first;
  }
  m.module->load_state_dict(theirs);

  const bool indices = c.at("d_inputs").empty();
  Tensors inputs;
  for (const json& x : c.at("inputs")) {
    inputs.push_back(tensor(x, indices ? i64 : f64));
    if (!indices) inputs.back().set_requires_grad();
  }
  const Tensors outputs = m.run(inputs);
  expect_close(outputs, c.at("outputs"), "output");
  Tensor total = zeros({}, f64);
  for (size_t i = 0; i < outputs.size(); ++i)
    total = total + sum(outputs[i] * tensor(c.at("dy")[i]));
  total.backward();
  Tensors d_inputs;
  for (const Tensor& x : inputs)
    if (!indices) d_inputs.push_back(x.grad());
  expect_close(d_inputs, c.at("d_inputs"), "gradient of input");
  for (const auto& [name, p] : m.module->named_parameters())
    expect_close(p.grad(), c.at("d_parameters").at(name), "gradient of " + name);
  for (const auto& [name, b] : m.module->named_buffers())
    expect_close(b, c.at("after").at(name), name + " afterwards");
}

using Models = std::map<std::string, std::function<Model()>>;

inline const json& reference(const std::string& group) {
  static const json groups = [] {
    json all;
    for (const char* name : {"modules_reference.json", "models_reference.json",
                             "llama_reference.json", "more_reference.json"})
      all.update(read_reference(name));
    return all;
  }();
  return groups.at(group);
}
inline std::vector<std::string> names(const Models& models) {
  std::vector<std::string> result;
  for (const auto& [name, make] : models) result.push_back(name);
  return result;
}
inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, ' ', '_');
  return name;
}
// Checks that each case of the file has its model.
inline void expect_complete(const Models& models, const std::string& group) {
  std::vector<std::string> cases;
  for (const auto& [name, c] : reference(group).items()) cases.push_back(name);
  EXPECT_EQ(names(models), cases);
}

}  // namespace mixtape::test
