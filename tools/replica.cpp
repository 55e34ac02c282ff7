// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <string>
#include <CLI/CLI.hpp>
#include <sherd/launch/launch.h>
#include "option_adder.h"
#include "subcommand.h"

namespace sherd::tools {
namespace {

struct ReplicaArguments {
  std::string control;
  int replica = 0;
};

CLI::App* add_request(
    CLI::App& replica_app,
    const std::string& name,
    const std::string& description,
    ReplicaArguments& arguments) {
  CLI::App* request = replica_app.add_subcommand(name, description);
  const auto add = option_adder(request);
  add("replica", arguments.replica, "N", "Its number, from 0")->required();
  add("--control", arguments.control, "PATH",
      "The socket that `sherd run --control` made")
      ->required();
  return request;
}

}  // namespace

void add_replica(CLI::App& app) {
  auto arguments = std::make_shared<ReplicaArguments>();
  CLI::App* replica_app = app.add_subcommand(
      "replica", "Drain or readmit a replica of a running job");
  replica_app->require_subcommand(1);
  replica_app->footer(  // The commands below inherit it.
      "Examples:\n"
      "  sherd replica drain 2 --control run/control\n"
      "  sherd replica admit 2 --control run/control");
  const CLI::App* drain = add_request(
      *replica_app, "drain",
      "Let a replica leave after its step; it stays away", *arguments);
  add_request(
      *replica_app, "admit",
      "Start a replica that has left, or that was given up", *arguments);
  replica_app->callback([arguments, drain] {
    const std::string answer = drain->parsed()
        ? launch::drain_replica(arguments->control, arguments->replica)
        : launch::admit_replica(arguments->control, arguments->replica);
    std::printf("%s\n", answer.c_str());
  });
}

}  // namespace sherd::tools
