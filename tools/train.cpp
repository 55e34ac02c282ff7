// SPDX-License-Identifier: Apache-2.0
//
// sherd-train, executed by `sherd train`: one rank of a training job.
#include <sherd/base/run_main.h>
#include "exec_program.h"
#include "train/signal_request.h"
#include "train/train_command.h"

int main(int argc, char** argv) {
  using namespace sherd::tools;
  accept_save_requests();
  return sherd::run_main(argc, argv, [&] {
    return is_replica()
        ? exec_beside(kReplicaProgram, kReplicaProgramRemedy, argv)
        : train_command(argc, argv, train);
  });
}
