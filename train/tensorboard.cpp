#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "core/check.h"
#include "io/crc.h"
#include "io/text.h"
#include "train/learner.h"
#include "train/run_folder.h"

namespace mixtape::train {
using io::ProtoMessage;
namespace {

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// TFRecord masks checksums, because the data may contain checksums itself.
std::string masked_crc(const std::string& data) {
  const uint32_t crc = io::crc32c(std::as_bytes(std::span(data)));
  return little_endian((crc >> 15 | crc << 17) + 0xa282ead8u);
}

double now() {
  const auto t = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(t).count();
}

std::string new_name() {
  static std::atomic<unsigned> count{0};
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = 0;
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", int64_t(now()), host[0] ? host : "host",
                     ::getpid(), count++);
}

}  // namespace

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary {1 value {1 tag, 2 simple_value}},
// 7 session_log {1 status, where 1 is START}.
EventFile::EventFile(const std::string& folder, int64_t first_step)
    : file_(RunFolder(folder).path(new_name())) {
  event(ProtoMessage().bytes(3, "brain.Event:2"));
  event(ProtoMessage().number(2, first_step).message(7, ProtoMessage().number(1, 1)));
}

void EventFile::write(int64_t step, const Scalars& values) {
  ProtoMessage summary;
  for (const auto& [tag, value] : values) {
    check(io::is_utf8(tag), "the tag {} is not UTF-8", io::quote(tag));
    summary.message(1, ProtoMessage().bytes(1, tag).real(2, float(value)));
  }
  event(ProtoMessage().number(2, step).message(5, summary));
}

void EventFile::event(const ProtoMessage& fields) {
  const std::string data = ProtoMessage().real(1, now()).text() + fields.text(),
                    length = little_endian(uint64_t(data.size()));
  file_.append(length + masked_crc(length) + data + masked_crc(data));
}

void TensorBoard::write_step(const Learner&, const StepRow& r) {
  file_->write(r.step, {{"loss", r.loss}, {"lr", r.lr}, {"scale", r.scale}});
}

void TensorBoard::write_epoch(const Learner& learner, const EpochRow& r) {
  EventFile::Scalars all;
  for (const auto& score : learner.scores(r)) all.emplace_back(score.name, score.value);
  file_->write(r.step, all);
}

}  // namespace mixtape::train
