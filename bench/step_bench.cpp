// SPDX-License-Identifier: Apache-2.0
#include "bench/step_bench.h"

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <sherd/base/error.h>
#include "base/descriptor.h"
#include "bench/losses.h"
#include "bench/memory.h"
#include "bench/step_barrier.h"

namespace sherd::bench {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kStopDeadline(15);
// Steps whose losses are compared; they warm caches and allocators, too.
constexpr int kFirstSteps = 5;

double widest(const std::vector<MedianEstimate>& estimates) {
  double width = 0.0;
  for (const auto& estimate : estimates) {
    width = std::max(width, estimate.width());
  }
  return width;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A page that the copies of the bound map; it disappears with this process.
Descriptor shared_page() {
  Descriptor page(::memfd_create("bench-barrier", MFD_CLOEXEC));
  if (!page.open() || ::ftruncate(page.get(), StepBarrier::kBytes) != 0) {
    throw Error(
        std::string("[bench] cannot make a page: ") + std::strerror(errno),
        ErrorCode::kUnavailable);
  }
  return page;
}

std::vector<std::string> rank_command(
    const std::string& name,
    const StepConfig& config,
    const StepPrograms& programs,
    const Descriptor& page) {
  std::vector<std::string> command = {programs.rank};
  if (name == "fsdp2" || name == "ddp" || name == "python") {
    command = {config.python, programs.peer_script};
  }
  const auto add = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  add(flags_of(workload_named(config.work)));
  // Contenders ignore what they have no choice of.
  add(
      {"--contender", name, "--mode", config.mode, "--strategy",
       config.strategy, "--dtype", config.dtype, "--exchange", config.exchange,
       "--replicate", std::to_string(config.replicate), "--update",
       config.update});
  if (!config.budget.empty()) {
    add({"--budget-bytes", std::to_string(budget_bytes_of(config))});
  }
  if (name == "bound") {
    add(
        {"--barrier",
         "/proc/" + std::to_string(::getpid()) + "/fd/" +
             std::to_string(page.get())});
  }
  if (name == "python" && !programs.package.empty()) {
    add({"--package", programs.package});
  }
  return command;
}

// The contenders of one measurement, and what is known of each so far.
class InterleavedRun {
 public:
  InterleavedRun(
      const StepConfig& config,
      const StepPrograms& programs,
      const SignalFd& signals)
      : config_(config) {
    const auto environment =
        contender_environment(programs.environment, config.heap);
    for (const auto& name : contenders_of(config)) {
      const ContenderJob::Spec setup{
          .name = name,
          .sherd = programs.sherd,
          .ranks = config.ranks,
          .command = rank_command(name, config, programs, page_),
          .environment = environment};
      auto& entry = entries_.emplace_back();
      entry.measured.name = name;
      entry.contender = std::make_unique<ContenderJob>(setup, signals);
    }
  }

  void wait_until_ready() {
    for (auto& entry : entries_) {
      auto ready = entry.contender->wait_until_ready(kReadyDeadline);
      entry.measured.torch_version = std::move(ready.torch_version);
      entry.processes = std::move(ready.processes);
    }
  }

  // Throws Error if contenders do not train alike.
  void compare_losses() {
    std::vector<FirstLosses> first;
    for (auto& entry : entries_) {
      const bool drifts = config_.ranks > 1 && entry.measured.name == "bound";
      first.push_back(
          {.name = entry.measured.name,
           .losses = entry.contender->run(kFirstSteps, kBlockDeadline).losses,
           .comparable = drifts ? 1 : std::size_t{kFirstSteps}});
    }
    const double tolerance =
        config_.dtype == "bf16" ? kBf16LossTolerance : kLossTolerance;
    if (const auto why = disagreement(first, tolerance); !why.empty()) {
      throw Error("[bench] " + why, ErrorCode::kFailedPrecondition);
    }
  }

  // Looking at a process's pages slows it down, so these steps are not timed.
  void measure_memory(int steps) {
    for (auto& entry : entries_) {
      auto& peak = entry.measured.pss_bytes_peak;
      entry.contender->run(steps, kBlockDeadline, [&] {
        peak = std::max(peak, pss_bytes(entry.processes));
      });
    }
  }

  void run_round(int round, int steps) {
    const auto order =
        order_of_round(entries_.size(), static_cast<std::uint64_t>(round));
    for (const auto index : order) {
      auto& [contender, measured, processes] = entries_[index];
      // One more step comes first, since another contender has filled the caches.
      auto ran = contender->run(steps + 1, kBlockDeadline);
      measured.faults += ran.faults;
      measured.cpu_ms += ran.cpu_ms;
      measured.rank_steps += std::int64_t{steps + 1} * config_.ranks;
      auto& step_ms = ran.step_ms;
      step_ms.erase(step_ms.begin());
      measured.round_ms.push_back(median(step_ms));
      measured.step_ms.insert(
          measured.step_ms.end(), step_ms.begin(), step_ms.end());
    }
  }

  // Each contender's time divided by the bound's.
  std::vector<MedianEstimate> ratios_to_bound() const {
    std::vector<MedianEstimate> result;
    for (std::size_t i = 1; i < entries_.size(); ++i) {
      result.push_back(estimate_median(ratios(
          entries_[i].measured.round_ms, entries_[0].measured.round_ms)));
    }
    return result;
  }

  // For use after a failure. All are told first, so that they end at the same time.
  void stop() noexcept {
    for (const auto& entry : entries_) {
      entry.contender->tell_to_stop();
    }
    for (const auto& entry : entries_) {
      entry.contender->stop(kStopDeadline);
    }
  }

  std::vector<ContenderResult> end() {
    std::vector<ContenderResult> result;
    for (auto& entry : entries_) {
      entry.contender->end(kEndDeadline);
      result.push_back(std::move(entry.measured));
    }
    return result;
  }

 private:
  struct Entry {
    std::unique_ptr<ContenderJob> contender;
    ContenderResult measured;
    std::vector<int> processes;
  };

  const StepConfig& config_;
  const Descriptor page_ = shared_page();
  std::vector<Entry> entries_;
};

StepResult run(
    InterleavedRun& measurement,
    const StepConfig& config,
    const ProgressCallback& progress) {
  StepResult result;
  result.block_steps = config.block_steps > 0
      ? config.block_steps
      : workload_named(config.work).block_steps;
  progress("starting");
  measurement.wait_until_ready();
  progress("comparing losses");
  measurement.compare_losses();
  progress("measuring memory");
  measurement.measure_memory(result.block_steps + 1);
  const auto begin = Clock::now();
  while (result.why_stopped.empty()) {
    measurement.run_round(result.rounds, result.block_steps);
    ++result.rounds;
    result.seconds = seconds_since(begin);
    const auto found = measurement.ratios_to_bound();
    result.why_stopped =
        stop_reason(found, result.rounds, result.seconds, config.limits);
    progress(
        "round " + std::to_string(result.rounds) + ", widest interval " +
        std::to_string(widest(found)));
  }
  result.contenders = measurement.end();
  return result;
}

}  // namespace

std::vector<std::string> contender_environment(
    std::vector<std::string> environment, const std::string& heap) {
  std::vector<std::pair<std::string, std::string>> ours = {
      {"OMP_NUM_THREADS=", "1"}, {"MKL_NUM_THREADS=", "1"}};
  if (heap == "kept") {
    ours.emplace_back("MALLOC_TRIM_THRESHOLD_=", "1000000000000");
    ours.emplace_back("MALLOC_MMAP_THRESHOLD_=", "1000000000000");
    // Heaps of other threads, Gloo's for instance, hold 64 MiB each and ask the kernel for anything
    // larger.
    ours.emplace_back("MALLOC_ARENA_MAX=", "1");
  }
  for (const auto& [name, value] : ours) {
    std::erase_if(environment, [&](const std::string& entry) {
      return entry.starts_with(name);
    });
    environment.push_back(name + value);
  }
  return environment;
}

StepResult measure(
    const StepConfig& config,
    const StepPrograms& programs,
    const SignalFd& signals,
    const ProgressCallback& progress) {
  InterleavedRun measurement(config, programs, signals);
  try {
    return run(measurement, config, progress);
  } catch (...) {
    measurement.stop();
    throw;
  }
}

}  // namespace sherd::bench
