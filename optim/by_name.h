#pragma once
// Optimizers and schedules by name, for configuration files and command lines.
//
//   auto optimizer = optim::get("adamw", net.parameters(), {{"lr", 1e-3}, {"weight_decay", 0.1}});
//   auto schedule = optim::get_schedule("step:30,60,80", *optimizer, {.epoch_steps = 500});

#include "optim/schedule.h"

namespace mixtape::optim {

// Options by the names that option() knows, "maximize" too, flags as 0 or 1.
using NamedOptions = std::vector<std::pair<std::string, double>>;
// One of optimizer_names(): "sgd", "adamw", ... Of muon, parameters that are no matrices are a
// group of AdamW, with the same rate and decay. Throws Error if there is no such optimizer (LBFGS,
// whose step takes a closure, and Ascended are made by type) or option, or if values are out of
// range.
std::unique_ptr<Optimizer> get(std::string_view name, std::vector<Tensor> params,
                               const NamedOptions& options = {}, const CommonOptions& common = {});
std::vector<std::string> optimizer_names();  // in the order of kernels::Optimizers

struct ScheduleSteps {       // lengths that the text of a schedule leaves open
  int64_t total_steps = 0;   // in which a schedule of a given length ends
  int64_t epoch_steps = 1;   // the unit of milestones: 1 counts steps
  int64_t warmup_steps = 0;  // in which the rate rises linearly, before the schedule begins
};
// A schedule from text:
//   "constant"              "constant:0.3,5" is times 0.3 until epoch 5
//   "step:30,60,80"         times 0.1 at these epochs; "step:30,60,80:0.2" times 0.2
//   "exponential:0.97"      times 0.97 after each epoch, in every step a part of it
//   "multiplicative:0.9"    times 0.9 after each epoch
//   "linear", "cosine"      to 0 in total_steps
//   "polynomial:2"          so, with this power
//   "wsd:0.2"               constant, then to 0 in the last 0.2 of the steps
//   "cosine_restarts:10"    cosines of 10 epochs; "cosine_restarts:10:2", each twice the last
//   "one_cycle"             rises to each group's rate and falls, momentum the other way, if all
//                           groups have one; without warm-up
//   "cyclic:1e-4,1e-2,8"    all groups' rates rise from 1e-4 to 1e-2 in 8 epochs and fall back,
//                           again and again, momentum as in one_cycle; without warm-up
// A state loads only into a schedule of the same text. Throws Error if it is none of these, or if
// its numbers are out of range.
std::unique_ptr<Schedule> get_schedule(std::string_view text, Optimizer& optimizer,
                                       const ScheduleSteps& steps);
void check_schedule(std::string_view text);  // throws the same Error of text

}  // namespace mixtape::optim
