// Arithmetic, activations, comparisons and copies. ONNX's ops broadcast, as ours do. A formula of
// several ops is computed in f32, as our kernels do in registers.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/dtype.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
namespace {

Name same(const OpCall& c) { return c.g.node(c.to, c.broadcast_inputs(c.dtype())); }
// Arithmetic. For bools, as in our ops, a sum is or, a product is and.
Name arithmetic(const OpCall& c) {
  const bool sum = c.op() == "add" || c.op() == "maximum";
  return c.g.node(c.dtype() != boolean ? c.to : sum ? "Or" : "And", c.broadcast_inputs(c.dtype()));
}
Name bits(const OpCall& c) {
  const char* const kind = c.dtype() == boolean ? "" : "Bitwise";
  return c.g.node(std::string(kind) + c.to, c.broadcast_inputs(c.dtype()));
}
Name logical(const OpCall& c) {
  std::vector<Name> inputs = c.broadcast_inputs();
  for (Name& x : inputs) x = c.g.cast(x, boolean);
  return c.g.node(c.to, inputs);
}
Name predicate(const OpCall& c) { return c.g.node(c.to, c.broadcast_inputs(), {}, boolean); }
Name negated(const OpCall& c) { return c.g.node("Not", {predicate(c)}); }

Name with_number(const OpCall& c) {
  return c.g.node(c.to, {c.in(0, c.dtype()), c.g.number(c.argument<double>(), c.dtype())});
}
Name number_with(const OpCall& c) {
  return c.g.node(c.to, {c.g.number(c.argument<double>(), c.dtype()), c.in(0, c.dtype())});
}
// Integers are compared with a fraction as f64.
Name predicate_of_number(const OpCall& c) {
  const double s = c.argument<double>();
  const DType own = c.tensor(0).dtype();
  const DType in = own == boolean ? f32 : is_float(own) || holds(own, s) ? own : f64;
  return c.g.node(c.to, {c.in(0, in), c.g.number(s, in)}, {}, boolean);
}
Name negated_of_number(const OpCall& c) { return c.g.node("Not", {predicate_of_number(c)}); }

Name with_alpha(const OpCall& c) {
  return c.g.node(c.to, {c.in(0, c.dtype())}, {{"alpha", c.argument<double>()}});
}
Name hardsigmoid(const OpCall& c) {
  return c.g.node("HardSigmoid", {c.in(0, c.dtype())}, {{"alpha", 1.0 / 6}, {"beta", 0.5}});
}
Name clip(const OpCall& c, double low, double high) {
  const auto bound = [&](double x) { return std::isinf(x) ? Name() : c.g.number(x, c.dtype()); };
  return c.g.node("Clip", {c.in(0, c.dtype()), bound(low), bound(high)});
}
Name clamp(const OpCall& c) { return clip(c, c.argument<double>(0), c.argument<double>(1)); }
Name relu6(const OpCall& c) { return clip(c, 0, 6); }

Name isinf(const OpCall& c) {
  return c.g.node("IsInf", {c.in(0, c.tensor(0).dtype() == f64 ? f64 : f32)}, {}, boolean);
}
Name isfinite(const OpCall& c) {
  const Name nan = c.g.node("IsNaN", {c.in(0)}, {}, boolean);
  return c.g.node("Not", {c.g.node("Or", {isinf(c), nan})});
}

Name as_given(const OpCall& c) { return c.in(0); }
Name converted(const OpCall& c) { return c.in(0, c.dtype()); }
Name where(const OpCall& c) {
  std::vector<Name> x = c.broadcast_inputs();
  for (const size_t i : {1, 2}) x[i] = c.g.cast(x[i], c.dtype());
  return c.g.node("Where", x, {}, c.dtype());
}
Name masked_fill(const OpCall& c) {
  double value = c.argument<double>();
  if (is_float(c.dtype()) && std::isfinite(value))
    value = std::clamp(value, -largest(c.dtype()), largest(c.dtype()));
  return c.g.node("Where", {c.broadcast_input(1), c.g.number(value, c.dtype()), c.in(0, c.dtype())},
                  {}, c.dtype());
}

// --- formulas ---

// Ops on values of one dtype, from which formulas are made.
struct Terms {
  GraphBuilder& g;
  DType dtype;

  Name number(double x) const { return g.number(x, dtype); }
  Name add(const Name& a, const Name& b) const { return g.node("Add", {a, b}); }
  Name sub(const Name& a, const Name& b) const { return g.node("Sub", {a, b}); }
  Name mul(const Name& a, const Name& b) const { return g.node("Mul", {a, b}); }
  Name div(const Name& a, const Name& b) const { return g.node("Div", {a, b}); }
  Name of(const char* op, const Name& x) const { return g.node(op, {x}); }
  Name less(const Name& a, const Name& b) const { return g.node("Less", {a, b}, {}, boolean); }
  Name where(const Name& condition, const Name& a, const Name& b) const {
    return g.node("Where", {condition, a, b}, {}, dtype);
  }
};
using In = const std::vector<Name>&;

// f of the inputs, with f16 and bf16 converted to f32.
template <auto f, bool in_f64 = false>
Name formula(const OpCall& c) {
  const DType dtype = !is_float(c.dtype()) ? c.dtype() : in_f64 ? f64 : accumulate_dtype(c.dtype());
  return f(Terms{c.g, dtype}, c, c.broadcast_inputs(dtype));
}

Name square(const Terms& t, const OpCall&, In x) { return t.mul(x[0], x[0]); }
Name rsqrt(const Terms& t, const OpCall&, In x) { return t.of("Reciprocal", t.of("Sqrt", x[0])); }
Name exp2(const Terms& t, const OpCall&, In x) { return t.g.node("Pow", {t.number(2), x[0]}); }
Name expm1(const Terms& t, const OpCall&, In x) { return t.sub(t.of("Exp", x[0]), t.number(1)); }
Name log1p(const Terms& t, const OpCall&, In x) { return t.of("Log", t.add(x[0], t.number(1))); }
Name log2(const Terms& t, const OpCall&, In x) {
  return t.div(t.of("Log", x[0]), t.number(std::numbers::ln2));
}
Name log10(const Terms& t, const OpCall&, In x) {
  return t.div(t.of("Log", x[0]), t.number(std::numbers::ln10));
}
Name trunc(const Terms& t, const OpCall&, In x) {
  return t.mul(t.of("Sign", x[0]), t.of("Floor", t.of("Abs", x[0])));
}
Name frac(const Terms& t, const OpCall& c, In x) { return t.sub(x[0], trunc(t, c, x)); }
Name erfc(const Terms& t, const OpCall&, In x) { return t.sub(t.number(1), t.of("Erf", x[0])); }
// log(exp(a ln(base)) + exp(b ln(base))) / ln(base); equal infinities would give NaN.
Name logaddexp(const Terms& t, const OpCall& c, In x) {
  const Name scale = t.number(c.op() == "logaddexp" ? 1 : std::numbers::ln2);
  const Name apart = t.mul(t.of("Abs", t.sub(x[0], x[1])), scale);
  const Name more = t.of("Log", t.add(t.of("Exp", t.of("Neg", apart)), t.number(1)));
  const Name equal = t.g.node("Equal", {x[0], x[1]}, {}, boolean);
  const Name added = t.where(equal, t.number(std::numbers::ln2), more);
  return t.add(t.g.node("Max", {x[0], x[1]}), t.div(added, scale));
}
// (The quotient of two infinities would be NaN: that of their signs has their angle.)
Name atan2(const Terms& t, const OpCall&, In given) {
  const Name both = t.g.node("And", {t.g.node("IsInf", {given[0]}, {}, boolean),
                                     t.g.node("IsInf", {given[1]}, {}, boolean)});
  const auto finite = [&](const Name& a) { return t.where(both, t.of("Sign", a), a); };
  const std::vector<Name> x{finite(given[0]), finite(given[1])};
  const Name zero = t.number(0), sign = t.of("Sign", x[0]);
  const Name half_turn =
      t.where(t.less(x[0], zero), t.number(-std::numbers::pi), t.number(std::numbers::pi));
  const Name angle =
      t.add(t.of("Atan", t.div(x[0], x[1])), t.where(t.less(x[1], zero), half_turn, zero));
  return t.where(t.g.node("Equal", {x[1], zero}, {}, boolean),
                 t.mul(sign, t.number(std::numbers::pi / 2)), angle);
}
Name copysign(const Terms& t, const OpCall&, In x) {  // (1 / -0 is negative)
  const Name zero = t.number(0), size = t.of("Abs", x[0]);
  const Name below = t.g.node("Or", {t.less(x[1], zero), t.less(t.of("Reciprocal", x[1]), zero)});
  return t.where(below, t.of("Neg", size), size);
}
Name copysign_scalar(const Terms& t, const OpCall& c, In x) {
  const Name size = t.of("Abs", x[0]);
  return std::signbit(c.argument<double>()) ? t.of("Neg", size) : size;
}
Name silu(const Terms& t, const OpCall&, In x) { return t.mul(x[0], t.of("Sigmoid", x[0])); }
Name log_sigmoid(const Terms& t, const OpCall&, In x) {
  return t.of("Neg", t.of("Softplus", t.of("Neg", x[0])));
}
Name glu(const Terms& t, const OpCall&, In x) { return t.mul(x[0], t.of("Sigmoid", x[1])); }
Name swiglu(const Terms& t, const OpCall& c, In x) { return t.mul(silu(t, c, x), x[1]); }
Name lerp(const Terms& t, const OpCall& c, In x) {
  const double w = c.argument<double>();
  const Name apart = t.sub(x[1], x[0]);
  return w < 0.5 ? t.add(x[0], t.mul(apart, t.number(w)))
                 : t.sub(x[1], t.mul(apart, t.number(1 - w)));
}
Name addcmul(const Terms& t, const OpCall& c, In x) {
  return t.add(x[0], t.mul(t.mul(x[1], x[2]), t.number(c.argument<double>())));
}
Name addcdiv(const Terms& t, const OpCall& c, In x) {
  return t.add(x[0], t.mul(t.div(x[1], x[2]), t.number(c.argument<double>())));
}
Name fmod(const Terms& t, const Name& a, const Name& b) {
  return t.g.node("Mod", {a, b}, {{"fmod", int64_t{1}}});
}
// Like Python's %, with the sign of b. (ONNX's has it for integers; a quotient of floats, rounded
// to an integer, would lose the digits of large ones.)
Name modulo(const Terms& t, const Name& a, const Name& b) {
  if (!is_float(t.dtype)) return t.g.node("Mod", {a, b});
  const Name rest = fmod(t, a, b), zero = t.number(0);
  const Name apart = t.g.node("Xor", {t.less(rest, zero), t.less(b, zero)});
  const Name exact = t.g.node("Equal", {rest, zero}, {}, boolean);
  return t.where(exact, rest, t.where(apart, t.add(rest, b), rest));
}
Name fmod_of_both(const Terms& t, const OpCall&, In x) { return fmod(t, x[0], x[1]); }
Name fmod_scalar(const Terms& t, const OpCall& c, In x) {
  return fmod(t, x[0], t.number(c.argument<double>()));
}
Name remainder(const Terms& t, const OpCall&, In x) { return modulo(t, x[0], x[1]); }
Name remainder_scalar(const Terms& t, const OpCall& c, In x) {
  return modulo(t, x[0], t.number(c.argument<double>()));
}

// ONNX truncates quotients of integers: one less, where what they leave has not the sign of b.
Name floor_divide(const Terms& t, const Name& a, const Name& b) {
  const Name quotient = t.div(a, b);
  if (is_float(t.dtype)) return t.of("Floor", quotient);
  const Name rest = t.sub(a, t.mul(quotient, b));
  const Name exact = t.g.node("Equal", {rest, modulo(t, a, b)}, {}, boolean);
  return t.where(exact, quotient, t.sub(quotient, t.number(1)));
}
Name floor_divide_both(const Terms& t, const OpCall&, In x) { return floor_divide(t, x[0], x[1]); }
Name floor_divide_scalar(const Terms& t, const OpCall& c, In x) {
  return floor_divide(t, x[0], t.number(c.argument<double>()));
}
Name logit(const Terms& t, const OpCall& c, In x) {
  const double eps = c.argument<double>(0);
  const Name most = t.number(c.argument<double>(1)), rest = t.sub(t.number(1), x[0]);
  const Name y = t.of("Log", t.div(x[0], rest));
  const Name y_or_most = t.where(t.less(rest, t.number(eps)), most, y);
  return t.where(t.less(x[0], t.number(eps)), t.of("Neg", most), y_or_most);
}
Name hypot(const Terms& t, const OpCall&, In x) {
  return t.of("Sqrt", t.add(t.mul(x[0], x[0]), t.mul(x[1], x[1])));
}

// a 2^b or floor(a / 2^b), since BitShift has no signed integers. If b is negative or shifts all
// bits out, the sign alone is left, or nothing.
Name shift(const OpCall& c) {
  const Terms t{c.g, i64};
  std::vector<Name> x = c.broadcast_inputs();
  if (c.inputs() == 1) x.push_back(t.number(c.argument<double>()));
  for (Name& each : x) each = c.g.cast(each, i64);
  const bool left = std::string_view(c.to) == "left";
  const auto most = double(8 * size_of(c.dtype())) - 1;  // (2^63 is no i64, and cannot divide)
  const Name zero = t.number(0), limit = t.number(left ? most : std::min(most, 62.0));
  const Name out = t.g.node("Or", {t.less(x[1], zero), t.less(limit, x[1])});
  const Name power = t.g.node("Pow", {t.number(2), t.where(out, zero, x[1])});
  if (left) return t.where(out, zero, t.mul(x[0], power));
  const Name sign = t.where(t.less(x[0], zero), t.number(-1), zero),
             rest = t.g.node("Mod", {x[0], power});
  return t.where(out, sign, t.div(t.sub(x[0], rest), power));
}

Name gelu_row(const OpCall& c) { return gelu(c.g, c.in(0, c.dtype()), c.op() == "gelu_tanh"); }

constexpr TranslationRow rows_of_elements[] = {
    {"abs", same, "Abs"},
    {"acos", same, "Acos"},
    {"acosh", same, "Acosh"},
    {"asin", same, "Asin"},
    {"asinh", same, "Asinh"},
    {"atan", same, "Atan"},
    {"atanh", same, "Atanh"},
    {"ceil", same, "Ceil"},
    {"cos", same, "Cos"},
    {"cosh", same, "Cosh"},
    {"erf", same, "Erf"},
    {"exp", same, "Exp"},
    {"floor", same, "Floor"},
    {"hardswish", same, "HardSwish"},
    {"log", same, "Log"},
    {"mish", same, "Mish"},
    {"neg", same, "Neg"},
    {"prelu", same, "PRelu"},
    {"reciprocal", same, "Reciprocal"},
    {"relu", same, "Relu"},
    {"round", same, "Round"},
    {"selu", same, "Selu"},
    {"sigmoid", same, "Sigmoid"},
    {"sign", same, "Sign"},
    {"sin", same, "Sin"},
    {"sinh", same, "Sinh"},
    {"softplus", same, "Softplus"},
    {"softsign", same, "Softsign"},
    {"sqrt", same, "Sqrt"},
    {"tan", same, "Tan"},
    {"tanh", same, "Tanh"},
    {"sub", same, "Sub"},
    {"div", same, "Div"},
    {"pow", same, "Pow"},
    {"add", arithmetic, "Add"},
    {"mul", arithmetic, "Mul"},
    {"maximum", arithmetic, "Max"},
    {"minimum", arithmetic, "Min"},
    {"logical_and", logical, "And"},
    {"logical_not", logical, "Not"},
    {"logical_or", logical, "Or"},
    {"logical_xor", logical, "Xor"},
    {"eq", predicate, "Equal"},
    {"ge", predicate, "GreaterOrEqual"},
    {"gt", predicate, "Greater"},
    {"isnan", predicate, "IsNaN"},
    {"le", predicate, "LessOrEqual"},
    {"lt", predicate, "Less"},
    {"ne", negated, "Equal"},
    {"isfinite", isfinite},
    {"isinf", isinf},
    {"add_scalar", with_number, "Add"},
    {"div_scalar", with_number, "Div"},
    {"mul_scalar", with_number, "Mul"},
    {"pow_scalar", with_number, "Pow"},
    {"sub_scalar", with_number, "Sub"},
    {"div_from_scalar", number_with, "Div"},
    {"pow_from_scalar", number_with, "Pow"},
    {"sub_from_scalar", number_with, "Sub"},
    {"eq_scalar", predicate_of_number, "Equal"},
    {"ge_scalar", predicate_of_number, "GreaterOrEqual"},
    {"gt_scalar", predicate_of_number, "Greater"},
    {"le_scalar", predicate_of_number, "LessOrEqual"},
    {"lt_scalar", predicate_of_number, "Less"},
    {"ne_scalar", negated_of_number, "Equal"},
    {"elu", with_alpha, "Elu"},
    {"leaky_relu", with_alpha, "LeakyRelu"},
    {"clamp", clamp},
    {"hardtanh", clamp},
    {"hardsigmoid", hardsigmoid},
    {"relu6", relu6},
    {"bitwise_and", bits, "And"},
    {"bitwise_not", bits, "Not"},
    {"bitwise_or", bits, "Or"},
    {"bitwise_xor", bits, "Xor"},
    {"bitwise_and_scalar", with_number, "BitwiseAnd"},
    {"bitwise_or_scalar", with_number, "BitwiseOr"},
    {"bitwise_xor_scalar", with_number, "BitwiseXor"},
    {"bitwise_left_shift", shift, "left"},
    {"bitwise_left_shift_scalar", shift, "left"},
    {"bitwise_right_shift", shift, "right"},
    {"bitwise_right_shift_scalar", shift, "right"},
    {"addcdiv", formula<addcdiv>},
    {"addcmul", formula<addcmul>},
    {"atan2", formula<atan2>},
    {"copysign", formula<copysign>},
    {"copysign_scalar", formula<copysign_scalar>},
    {"erfc", formula<erfc>},
    {"exp2", formula<exp2>},
    {"expm1", formula<expm1, true>},
    {"floor_divide", formula<floor_divide_both, true>},
    {"floor_divide_scalar", formula<floor_divide_scalar, true>},
    {"fmod", formula<fmod_of_both>},
    {"fmod_scalar", formula<fmod_scalar>},
    {"frac", formula<frac>},
    {"gelu", gelu_row},
    {"gelu_tanh", gelu_row},
    {"glu", formula<glu>},
    {"hypot", formula<hypot, true>},
    {"lerp", formula<lerp>},
    {"log10", formula<log10>},
    {"log1p", formula<log1p, true>},
    {"log2", formula<log2>},
    {"log_sigmoid", formula<log_sigmoid>},
    {"logaddexp", formula<logaddexp>},
    {"logaddexp2", formula<logaddexp>},
    {"logit", formula<logit, true>},
    {"remainder", formula<remainder>},
    {"remainder_scalar", formula<remainder_scalar>},
    {"rsqrt", formula<rsqrt>},
    {"silu", formula<silu>},
    {"square", formula<square>},
    {"swiglu", formula<swiglu>},
    {"trunc", formula<trunc>},
    {"cast", converted},
    {"cast_to_integer", converted},
    {"clone", as_given},
    {"to_device", as_given},
    {"masked_fill", masked_fill},
    {"where", where},
};

}  // namespace

Name gelu(GraphBuilder& g, const Name& given, bool tanh) {
  if (g.opset() >= 20)
    return g.node("Gelu", {given}, {{"approximate", std::string(tanh ? "tanh" : "none")}});
  const Terms t{g, accumulate_dtype(g.dtype(given))};
  const Name x = g.cast(given, t.dtype), half = t.mul(x, t.number(0.5));
  Name y;  // coordinates from -1 to 1
  if (tanh) {
    const Name cube = t.mul(t.mul(x, x), x);
    y = t.of("Tanh", t.mul(t.add(x, t.mul(cube, t.number(0.044715))),
                           t.number(std::sqrt(2 / std::numbers::pi))));
  } else {
    y = t.of("Erf", t.mul(x, t.number(1 / std::numbers::sqrt2)));
  }
  return g.cast(t.mul(half, t.add(y, t.number(1))), g.dtype(given));
}

std::span<const TranslationRow> elementwise_rows() { return rows_of_elements; }

}  // namespace mixtape::train::onnx
