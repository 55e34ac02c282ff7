// SPDX-License-Identifier: Apache-2.0
#include "launch/start_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <tuple>
#include "base/check.h"
#include "base/host.h"
#include "launch/port.h"
#include "launch/start_limits.h"

namespace sherd::launch {
namespace {

int read_topology(int core, const char* file, int otherwise) {
  std::ifstream in(
      str("/sys/devices/system/cpu/cpu", core, "/topology/", file));
  int value = otherwise;
  return in >> value ? value : otherwise;
}

Status make_log_folder(const LaunchOptions& options) {
  if (options.output != RankOutput::kFiles) {
    return {};
  }
  std::error_code error;
  std::filesystem::create_directories(options.log_dir, error);
  if (error) {
    return cannot(
        str("make the folder of the logs, '", options.log_dir, "'"),
        error.value());
  }
  return {};
}

}  // namespace

std::vector<CpuCore> usable_cores() {
  std::vector<CpuCore> cores;
  for (const int number : allowed_cores()) {
    cores.push_back(
        {number, read_topology(number, "physical_package_id", 0),
         read_topology(number, "core_id", number)});
  }
  return cores;
}

std::vector<std::vector<int>> divide_cores(
    std::vector<CpuCore> cores, int ranks) {
  SHERD_ASSERT(ranks >= 1);
  const auto parts = static_cast<std::size_t>(ranks);
  if (cores.size() < parts) {
    return {};
  }
  std::ranges::sort(cores, {}, [](const CpuCore& one) {
    return std::tie(one.package, one.physical, one.number);
  });
  std::vector<std::vector<int>> divided(parts);
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t end = cores.size() * (part + 1) / parts;
    for (std::size_t i = cores.size() * part / parts; i < end; ++i) {
      divided[part].push_back(cores[i].number);
    }
  }
  return divided;
}

StartStatus plan_start(const LaunchOptions& options, StartPlan* plan) {
  const bool replicated = options.replicas.has_value();
  const std::int64_t groups = replicated
      ? std::int64_t{options.replicas->replicas} + options.replicas->spares
      : 1;
  SHERD_RETURN_IF_FAILED(make_room(
      needs_of_job(groups, groups * options.ranks + (replicated ? 1 : 0))));
  const int ranks =
      (replicated ? options.replicas->replicas : 1) * options.ranks;
  const auto path = find_variable(options.environment, "PATH");
  SHERD_RETURN_IF_FAILED(find_program(
      options.command.front(), path.value_or("/usr/local/bin:/usr/bin:/bin"),
      &plan->path));
  // A rank that is alone meets nobody, unless its coordinator is here.
  if (options.ranks > 1 ||
      (replicated && options.replicas->coordinator.empty())) {
    SHERD_RETURN_IF_FAILED(check_loopback());
  }
  const std::vector<CpuCore> cores = usable_cores();
  plan->threads = static_cast<int>(cores.size()) / ranks;
  if (options.bind_cores) {
    plan->division = divide_cores(cores, ranks);
  }
  return make_log_folder(options);
}

SupervisedProcessSpec rank_process_spec(
    const LaunchOptions& options,
    const StartPlan& plan,
    const RankVariables& place,
    int slot,
    const std::string& name) {
  SupervisedProcessSpec setup;
  setup.slot = slot;
  setup.name = name;
  setup.process.path = plan.path;
  setup.process.command = options.command;
  setup.process.environment = variables_of_rank(options.environment, place);
  const auto index = static_cast<std::size_t>(slot);
  if (index < plan.division.size()) {
    setup.process.cores = plan.division[index];
  }
  if (options.output == RankOutput::kPrefixed) {
    setup.prefix = "[" + name + "] ";
  }
  return setup;
}

}  // namespace sherd::launch
