#include "bench/gpu/op_case.h"

#include "core/random.h"

namespace mixtape::bench {
namespace {

// The op with its inputs, for repeated runs.
struct Instance {
  const OpCase& c;
  Tensors inputs, leaves;
  Tensor y, dy;

  Instance(const OpCase& c, const Tensors& made, const Tensor& gradient = {}) : c(c), inputs(made) {
    if (c.wrt.empty()) return;
    for (const size_t i : c.wrt) {
      inputs[i] = inputs[i].detach();
      leaves.push_back(inputs[i].set_requires_grad());
    }
    const Seed seed(7);
    y = c.op(inputs);
    dy = gradient ? gradient.to(y.dtype()) : randn(y.shape(), y.dtype());
  }
  Tensors run() const {
    if (!leaves.empty()) return grad({y}, leaves, {.gradients = {dy}, .retain_graph = true});
    const NoGrad off;
    const Seed seed(7);
    return {c.op(inputs)};
  }
};

double error_of(const OpCase& c) {
  Tensors here, there;
  for (const Tensor& x : c.inputs(c.few, c.dtype)) {
    here.push_back(is_float(x.dtype()) ? x.to(c.reference) : x);
    there.push_back(x.to(gpu));
  }
  // (dy is drawn for the device and rounded there.)
  Instance checked = [&] {
    const DefaultDevice on(gpu);
    return Instance(c, there);
  }();
  const Instance reference(c, here, checked.dy ? checked.dy.to(Device::cpu()) : Tensor());
  const Tensors got = checked.run(), want = reference.run();
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = distance(got[i], want[i]);
    most = d <= most ? most : d;  // keeps NaN
  }
  return most;
}

}  // namespace

void measure(Report& report, const OpCase& c) {
  report.take(c.name, [&](Figure& f) {
    const int64_t rows = report.settings.smoke ? c.few : c.rows;
    f.kind = c.kind;
    f.work = c.work * double(rows);
    f.tolerance = c.tolerance > 0 ? c.tolerance : c.dtype == f32 ? 1e-5 : 1e-2;
    f.error = error_of(c);
    const DefaultDevice here(gpu);
    std::vector<Instance> sets;
    const double bytes = c.input_bytes > 0 ? c.input_bytes : c.work;
    const int64_t count = report.sets(bytes * double(rows));
    for (int64_t i = 0; i < count; ++i) sets.emplace_back(c, c.inputs(rows, c.dtype));
    f.ours = report.time({[&](int64_t i) { sets[size_t(i % count)].run(); }})[0];
  });
}

}  // namespace mixtape::bench
