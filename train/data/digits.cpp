// Bends strokes in the unit square, maps them to the image by a random affine map, and draws each
// pixel by its distance to the nearest stroke. Uses only + - * / and sqrt, which IEEE 754 rounds
// the same everywhere.

#include "train/data/digits.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "core/philox.h"

namespace mixtape::train {
namespace {

constexpr int side = 28;  // pixels
using Canvas = std::array<float, side * side>;

struct Point {
  float x, y;  // y grows downwards
};
Point operator+(Point a, Point b) { return {a.x + b.x, a.y + b.y}; }
Point operator-(Point a, Point b) { return {a.x - b.x, a.y - b.y}; }
Point operator*(float s, Point a) { return {s * a.x, s * a.y}; }

enum Kind : bool { corners, curve };  // lines or a smooth curve through the points
struct Stroke {
  Kind kind;
  std::vector<Point> points;
};
using Glyph = std::vector<Stroke>;

// Common ways to write each digit, in percent of the square.
const std::array<std::vector<Glyph>, 10>& alphabet() {
  static const std::array<std::vector<Glyph>, 10> glyphs = {{
      // 0
      {{{curve, {{50, 4}, {20, 24}, {16, 62}, {38, 95}, {70, 88}, {84, 50}, {74, 16}, {48, 4}}}},
       {{curve, {{62, 6}, {30, 12}, {15, 50}, {32, 93}, {68, 93}, {85, 52}, {66, 10}, {44, 8}}}}},
      // 1
      {{{corners, {{50, 4}, {50, 96}}}},
       {{corners, {{30, 27}, {55, 5}, {55, 96}}}},
       {{corners, {{30, 24}, {52, 5}, {52, 95}}}, {corners, {{30, 95}, {76, 95}}}}},
      // 2
      {{{curve, {{18, 27}, {44, 5}, {76, 22}, {64, 52}, {20, 95}}},
        {corners, {{20, 95}, {86, 93}}}},
       {{curve, {{20, 25}, {45, 6}, {74, 20}, {62, 55}, {30, 90}, {20, 82}, {45, 84}, {86, 94}}}},
       {{corners, {{18, 8}, {74, 6}, {20, 94}, {84, 94}}}}},
      // 3
      {{{curve, {{20, 15}, {52, 5}, {76, 24}, {40, 47}}},
        {curve, {{40, 47}, {80, 65}, {64, 93}, {18, 86}}}},
       {{corners, {{20, 7}, {78, 7}, {45, 42}}}, {curve, {{45, 42}, {82, 60}, {68, 92}, {20, 88}}}},
       {{curve, {{22, 10}, {70, 10}, {72, 36}, {46, 48}, {78, 60}, {74, 88}, {20, 94}}}}},
      // 4
      {{{corners, {{60, 4}, {14, 62}, {88, 62}}}, {corners, {{64, 34}, {62, 96}}}},
       {{corners, {{22, 5}, {20, 50}, {82, 50}}}, {corners, {{76, 5}, {70, 96}}}},
       {{corners, {{66, 96}, {66, 5}, {14, 66}, {90, 66}}}}},
      // 5
      {{{corners, {{80, 6}, {30, 7}, {25, 45}}},
        {curve, {{25, 45}, {60, 38}, {82, 65}, {60, 93}, {18, 88}}}},
       {{curve, {{78, 8}, {36, 10}, {28, 40}, {70, 52}, {72, 84}, {18, 93}}}},
       {{curve, {{30, 10}, {24, 46}, {66, 44}, {80, 72}, {54, 95}, {20, 86}}},
        {corners, {{30, 9}, {82, 6}}}}},
      // 6
      {{{curve, {{70, 4}, {36, 30}, {20, 66}, {42, 95}, {76, 80}, {64, 53}, {24, 64}}}},
       {{curve, {{56, 4}, {26, 50}, {28, 90}, {68, 92}, {78, 64}, {52, 52}, {25, 74}}}}},
      // 7
      {{{corners, {{15, 8}, {82, 7}, {40, 96}}}},
       {{corners, {{15, 8}, {82, 7}, {42, 96}}}, {corners, {{32, 52}, {76, 48}}}},
       {{curve, {{14, 20}, {30, 8}, {60, 14}, {84, 7}, {58, 45}, {44, 96}}}}},
      // 8 (clang-format would give each point a line)
      // clang-format off
      {{{curve, {{50, 48}, {25, 28}, {50, 4}, {76, 27}, {50, 48}, {19, 74}, {50, 96}, {82, 75},
                 {50, 48}}}},
       {{curve, {{76, 16}, {45, 5}, {28, 26}, {56, 50}, {76, 76}, {45, 95}, {22, 76}, {50, 48},
                 {76, 16}}}}},
      // clang-format on
      // 9
      {{{curve, {{76, 28}, {50, 5}, {25, 28}, {45, 52}, {76, 30}}},
        {corners, {{76, 28}, {66, 96}}}},
       {{curve, {{76, 20}, {40, 6}, {26, 38}, {62, 46}, {77, 18}, {74, 60}, {36, 95}}}},
       {{curve, {{72, 14}, {36, 10}, {28, 44}, {66, 44}, {74, 12}}},
        {curve, {{74, 12}, {76, 55}, {72, 96}}}}},
  }};
  return glyphs;
}

// The random numbers of one image: Philox with the image's number in the counter.
class Draws {
 public:
  Draws(uint64_t seed, uint32_t set, uint64_t image) : seed_(seed), set_(set), image_(image) {}

  uint32_t bits() {
    if (used_ == 4) {
      block_ = Philox::bits({count_++, set_, uint32_t(image_), uint32_t(image_ >> 32)},
                            uint32_t(seed_), uint32_t(seed_ >> 32));
      used_ = 0;
    }
    return block_[used_++];
  }
  float unit() { return Philox::uniform(bits()); }  // [0, 1)
  float uniform(float low, float high) { return low + unit() * (high - low); }
  size_t below(size_t n) { return size_t((uint64_t(bits()) * n) >> 32); }
  // Bell-shaped around 0 with the given standard deviation: four uniforms have variance 1/3.
  float bell(float deviation) {
    const float sum = unit() + unit() + unit() + unit();
    return (sum - 2) * 1.7320508f * deviation;
  }

 private:
  uint64_t seed_;
  uint32_t set_;
  uint64_t image_;
  uint32_t count_ = 0;
  Philox::Block block_ = {};
  size_t used_ = 4;
};

struct Pen {
  float radius, softness, ink;  // pixels, pixels from full ink to none, 0 to 1
};

void draw_segment(Canvas& canvas, Point a, Point b, const Pen& pen) {
  const float reach = pen.radius + pen.softness / 2;
  const int x0 = std::max(0, int(std::min(a.x, b.x) - reach)),
            x1 = std::min(side - 1, int(std::max(a.x, b.x) + reach) + 1);
  const int y0 = std::max(0, int(std::min(a.y, b.y) - reach)),
            y1 = std::min(side - 1, int(std::max(a.y, b.y) + reach) + 1);
  const Point d = b - a;
  const float inverse = 1 / (d.x * d.x + d.y * d.y + 1e-12f), slope = 1 / pen.softness;
  for (int y = y0; y <= y1; ++y)
    for (int x = x0; x <= x1; ++x) {
      const Point p{float(x) - a.x, float(y) - a.y};
      const float t = std::clamp((p.x * d.x + p.y * d.y) * inverse, 0.0f, 1.0f);
      const Point off = p - t * d;
      const float distance = std::sqrt(off.x * off.x + off.y * off.y);
      const float cover = std::clamp((reach - distance) * slope, 0.0f, 1.0f);
      float& pixel = canvas[size_t(y * side + x)];
      pixel = std::max(pixel, pen.ink * cover);
    }
}

// The Catmull-Rom spline from b to c.
Point spline(Point a, Point b, Point c, Point d, float t) {
  return b + 0.5f * t * ((c - a) + t * ((2 * a - 5 * b + 4 * c - d) + t * (3 * b - a - 3 * c + d)));
}

void draw_stroke(Canvas& canvas, Kind kind, const std::vector<Point>& p, const Pen& pen) {
  const int segments = kind == curve ? 5 : 1;
  for (size_t i = 0; i + 1 < p.size(); ++i) {
    const Point before = p[i == 0 ? 0 : i - 1], after = p[std::min(i + 2, p.size() - 1)];
    Point last = p[i];
    for (int k = 1; k <= segments; ++k) {
      const Point next = k == segments
                             ? p[i + 1]
                             : spline(before, p[i], p[i + 1], after, float(k) / float(segments));
      draw_segment(canvas, last, next, pen);
      last = next;
    }
  }
}

// An affine map from the unit square to the image: scale, then shear, rotate and shift.
struct AffineMap {
  Point x_axis, y_axis, centre;
  Point operator()(Point p) const { return centre + (p.x - 0.5f) * x_axis + (p.y - 0.5f) * y_axis; }
};

AffineMap random_map(Draws& draws) {
  const float width = draws.uniform(10, 17), height = draws.uniform(15, 21);
  const float shear = draws.bell(0.16f);
  const float h = draws.bell(0.08f);  // tangent of half the rotation
  const float c = (1 - h * h) / (1 + h * h), s = 2 * h / (1 + h * h);
  const auto rotate = [&](Point p) { return Point{c * p.x - s * p.y, s * p.x + c * p.y}; };
  const float middle = (side - 1) / 2.0f;
  return {rotate({width, 0}),
          rotate({-shear * height, height}),
          {middle + draws.uniform(-2.2f, 2.2f), middle + draws.uniform(-2.2f, 2.2f)}};
}

void draw_distractor(Canvas& canvas, Draws& draws) {
  const Point from{draws.uniform(0, side), draws.uniform(0, side)};
  const Point bend{draws.bell(3), draws.bell(3)}, to{draws.bell(6), draws.bell(6)};
  draw_stroke(canvas, curve, {from, from + 0.5f * to + bend, from + to},
              {draws.uniform(0.3f, 0.8f), 1.0f, draws.uniform(0.15f, 0.55f)});
}

void draw_digit(uint8_t* pixels, int digit, Draws draws) {
  Canvas canvas = {};
  constexpr size_t distractors[] = {0, 0, 1, 2};
  for (size_t n = distractors[draws.below(4)]; n > 0; --n) draw_distractor(canvas, draws);

  const AffineMap onto_image = random_map(draws);
  const Pen pen{draws.uniform(0.5f, 1.7f), draws.uniform(0.8f, 2.2f), draws.uniform(0.55f, 1.0f)};
  const float jitter = draws.uniform(0.01f, 0.05f);
  const auto& variants = alphabet()[size_t(digit)];
  for (const Stroke& stroke : variants[draws.below(variants.size())]) {
    std::vector<Point> points = stroke.points;
    for (Point& p : points) {
      const Point bend{draws.bell(jitter), draws.bell(jitter)};
      p = onto_image(0.01f * p + bend);
    }
    draw_stroke(canvas, stroke.kind, points, pen);
  }

  const float paper = draws.uniform(0, 0.15f), grain = draws.uniform(0.02f, 0.12f);
  for (size_t i = 0; i < canvas.size(); i += 2) {
    const uint32_t r = draws.bits();  // each half gives a triangular variate: the sum of two bytes
    for (size_t k = 0; k < 2; ++k) {
      const int bytes = int((r >> (16 * k)) & 255) + int((r >> (16 * k + 8)) & 255);
      const float noise = float(bytes - 255) * (1 / 255.0f) * grain;
      const float value = paper + (1 - paper) * canvas[i + k] + noise;
      pixels[i + k] = uint8_t(std::clamp(value, 0.0f, 1.0f) * 255 + 0.5f);
    }
  }
}

TensorDataset make_set(uint64_t seed, uint32_t set, int64_t count) {
  check(count >= 0, "the number of images must be >= 0, got {}", count);
  const Tensor images({count, 1, side, side}, u8, Device::cpu()),
      classes({count}, i64, Device::cpu());
  auto* pixels = images.data<uint8_t>();
  auto* labels = classes.data<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    labels[i] = i % 10;
    draw_digit(pixels + i * side * side, int(i % 10), Draws(seed, set, uint64_t(i)));
  }
  return {images, classes, "digits"};
}

}  // namespace

Split<TensorDataset> make_digits(uint64_t seed, int64_t train, int64_t valid) {
  return {make_set(seed, 1, train), make_set(seed, 2, valid)};
}

}  // namespace mixtape::train
