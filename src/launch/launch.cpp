// SPDX-License-Identifier: Apache-2.0
#include <sherd/launch/launch.h>

#include <utility>
#include "base/check.h"
#include "base/standard_descriptors.h"
#include "launch/control.h"
#include "launch/job.h"

namespace sherd::launch {
namespace {

// The number that a coordinator takes.
constexpr int kReplicasMax = 4096;

void check(const LaunchOptions& options) {
  SHERD_CHECK(
      options.ranks >= 1, "[launch] expected at least 1 rank, found ",
      options.ranks);
  SHERD_CHECK(
      !options.command.empty() && !options.command.front().empty(),
      "[launch] expected a program to run, found none");
  SHERD_CHECK(
      options.fake_hosts >= 0 && options.fake_hosts <= options.ranks,
      "[launch] expected at most one fake host for each of ", options.ranks,
      " ranks, found ", options.fake_hosts);
  SHERD_CHECK(
      options.port >= 0 && options.port <= 65535,
      "[launch] expected a port from 1 to 65535, found ", options.port);
  const bool files = options.output == RankOutput::kFiles;
  SHERD_CHECK(
      files == !options.log_dir.empty(), "[launch] expected log_dir ",
      files ? "to name a folder for the logs" : "to be empty without files",
      ", found '", options.log_dir, "'");
  SHERD_CHECK(
      !(files && options.rank0_owns_stdout),
      "[launch] expected rank 0 to write to a file or to own stdout, found ",
      "both");
  for (const auto& [name, grace] :
       {std::pair{"stop_grace", options.stop_grace},
        {"cause_grace", options.cause_grace},
        {"record_grace", options.record_grace}}) {
    SHERD_CHECK(
        grace.count() >= 0, "[launch] expected ", name,
        " of at least 0 ms, found ", grace.count());
  }
}

void check_replicas(const LaunchOptions& options) {
  const ReplicaOptions& replicas = *options.replicas;
  SHERD_CHECK(
      replicas.replicas >= 1 && replicas.replicas <= kReplicasMax,
      "[launch] expected 1 to ", kReplicasMax, " replicas, found ",
      replicas.replicas);
  SHERD_CHECK(
      replicas.spares >= 0 && replicas.spares <= kReplicasMax,
      "[launch] expected 0 to ", kReplicasMax, " spares, found ",
      replicas.spares);
  SHERD_CHECK(
      replicas.restarts_max >= 0,
      "[launch] expected at least 0 restarts, found ", replicas.restarts_max);
  SHERD_CHECK(
      replicas.restart_window.count() >= 0,
      "[launch] expected a restart window of at least 0 ms, found ",
      replicas.restart_window.count());
  SHERD_CHECK(
      replicas.replicas_min >= 1 && replicas.replicas_min <= replicas.replicas,
      "[launch] expected replicas_min from 1 to ", replicas.replicas,
      ", found ", replicas.replicas_min);
  SHERD_CHECK(
      replicas.samples_per_replica >= 0 &&
          replicas.samples_per_replica % options.ranks == 0,
      "[launch] expected samples per replica that its ", options.ranks,
      " ranks divide, found ", replicas.samples_per_replica);
  SHERD_CHECK(
      replicas.global_batch >= 0 && replicas.global_batch % options.ranks == 0,
      "[launch] expected a global batch that the ", options.ranks,
      " ranks of a replica divide, found ", replicas.global_batch);
  SHERD_CHECK(
      replicas.coordinator.empty() != replicas.coordinator_command.empty(),
      "[launch] expected the address of a coordinator or the command of one, ",
      "found ", replicas.coordinator.empty() ? "neither" : "both");
  SHERD_CHECK(
      options.port == 0 && options.fake_hosts == 0 &&
          !options.rank0_owns_stdout,
      "[launch] expected no port, fake hosts or rank that owns stdout with ",
      "replicas, found one of them");
}

std::string send_or_throw(
    const std::string& control, const std::string& verb, int replica) {
  Result<std::string> answer =
      send_control_request(control, str(verb, " ", replica));
  SHERD_CHECK_AS(
      kFailedPrecondition, answer.ok(), "[launch] ", answer.status().message());
  return std::move(answer).value();
}

}  // namespace

int run(const LaunchOptions& given) {
  check(given);
  LaunchOptions options = given;
  if (options.replicas) {
    check_replicas(options);
    if (options.replicas->samples_per_replica == 0) {
      options.replicas->samples_per_replica = options.ranks;
    }
  }
  fill_standard_descriptors();
  return options.replicas ? run_replica_job(options) : run_plain_job(options);
}

std::string drain_replica(const std::string& control, int replica) {
  return send_or_throw(control, "drain", replica);
}

std::string admit_replica(const std::string& control, int replica) {
  return send_or_throw(control, "admit", replica);
}

}  // namespace sherd::launch
