// SPDX-License-Identifier: Apache-2.0
//
// sherd-train-replica, executed by `sherd train` under `sherd run --fault-tolerant`: one rank of
// one replica.
#include <sherd/base/run_main.h>
#include "train/signal_request.h"
#include "train/train_command.h"

int main(int argc, char** argv) {
  using namespace sherd::tools;
  accept_save_requests();
  return sherd::run_main(
      argc, argv, [&] { return train_command(argc, argv, train_replica); });
}
