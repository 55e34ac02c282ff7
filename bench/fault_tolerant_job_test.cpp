// SPDX-License-Identifier: Apache-2.0
#include "bench/fault_tolerant_job.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "support/scratch_folder.h"

namespace sherd::bench {
namespace {

// Sets TMPDIR as long as it lives.
class TemporaryFiles {
 public:
  explicit TemporaryFiles(const std::string& folder) {
    if (const char* found = std::getenv("TMPDIR")) {
      before_ = found;
    }
    ::setenv("TMPDIR", folder.c_str(), /*overwrite=*/1);
  }
  ~TemporaryFiles() {
    before_.empty() ? ::unsetenv("TMPDIR")
                    : ::setenv("TMPDIR", before_.c_str(), /*overwrite=*/1);
  }
  TemporaryFiles(const TemporaryFiles&) = delete;
  TemporaryFiles& operator=(const TemporaryFiles&) = delete;

 private:
  std::string before_;
};

TEST(FaultTolerantJob, OneThatCannotStartLeavesNoFolder) {
  const testing::ScratchFolder scratch;
  const TemporaryFiles temporary(scratch.path());
  const SignalFd signals{SIGTERM};
  for (const bool cost : {false, true}) {
    FaultsConfig config;
    config.cost = cost;
    const StepPrograms programs{
        .sherd = "/nowhere/sherd",
        .rank = "/nowhere/rank",
        .peer_script = {},
        .package = {},
        .environment = {}};
    EXPECT_THROW(FaultTolerantJob(config, programs, signals), Error);
    EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  }
}

}  // namespace
}  // namespace sherd::bench
