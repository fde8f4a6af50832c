#pragma once
// Optimizers and schedules by name, for configuration files and command lines.
//
//   auto optimizer = optim::get("adamw", net.parameters(), {{"lr", 1e-3}, {"weight_decay", 0.1}});
//   auto schedule = optim::get_schedule("step:30,60,80", *optimizer, {.epoch_steps = 500});

#include "optim/schedule.h"

namespace mixtape::optim {

// Options by the names that option() knows, "maximize" included, with flags as 0 or 1.
using NamedOptions = std::vector<std::pair<std::string, double>>;
// Makes one of optimizer_names(): "sgd", "adamw", ... With muon, parameters that are not matrices
// form a group of AdamW with the same rate and decay. Throws Error if there is no such optimizer or
// option, or if a value is out of range. (LBFGS, whose step takes a closure, and Ascended are made
// by type.)
std::unique_ptr<Optimizer> get(std::string_view name, std::vector<Tensor> params,
                               const NamedOptions& options = {}, const CommonOptions& common = {});
std::vector<std::string> optimizer_names();  // in the order of kernels::Optimizers

struct ScheduleSteps {       // lengths that a schedule's text leaves open
  int64_t total_steps = 0;   // the length of schedules that have an end
  int64_t epoch_steps = 1;   // steps per epoch; with 1, epochs below are steps
  int64_t warmup_steps = 0;  // of a linear rise before the schedule begins
};
// Makes a schedule from a text:
//   "constant"              "constant:0.3,5": times 0.3 until epoch 5
//   "step:30,60,80"         times 0.1 at these epochs; "step:30,60,80:0.2": times 0.2
//   "exponential:0.97"      times 0.97 per epoch, spread over its steps
//   "multiplicative:0.9"    times 0.9 after each epoch, counted from the end of the warm-up
//   "linear", "cosine"      to 0 in total_steps
//   "polynomial:2"          to 0 in total_steps, with this power
//   "wsd:0.2"               constant, then to 0 in the last 0.2 of the steps
//   "cosine_restarts:10"    cosines of 10 epochs; "cosine_restarts:10:2", each twice the last
//   "one_cycle"             rises to each group's rate and falls; momentum, if all groups have one,
//                           moves the other way; takes no warm-up
//   "cyclic:1e-4,1e-2,8"    all rates rise from 1e-4 to 1e-2 in 8 epochs and fall back, again and
//                           again; momentum as in one_cycle; takes no warm-up
// A state loads only into a schedule of the same text. Throws Error if the text is none of these,
// or if a number is out of range.
std::unique_ptr<Schedule> get_schedule(std::string_view text, Optimizer& optimizer,
                                       const ScheduleSteps& steps);
void check_schedule(std::string_view text);  // throws the Error that get_schedule() would

}  // namespace mixtape::optim
