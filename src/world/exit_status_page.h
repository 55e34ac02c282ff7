// SPDX-License-Identifier: Apache-2.0
//
// An ExitStatusPage is a page of memory on which a rank records how it ended, for the ranks of its
// host: that it left in order, or what went wrong and which rank it blames. Recording is a plain
// store to memory, so it cannot block or fail, needs no c10d store and survives the process: a rank
// that reads the page after its writer's death sees everything recorded before. The writer owns a
// memfd; readers map it through /proc/PID/fd/N while the writer lives and keep the mapping. Thread
// rule: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include "base/descriptor.h"

namespace sherd::world {

// How a rank ended, and what it had seen go wrong before.
struct ExitStatus {
  enum class End { kNone, kLeft, kGaveUp };
  End end = End::kNone;
  // Set once something went wrong: the rank blamed for it (perhaps the writer itself) and a
  // sentence without its subject, e.g. "died".
  struct Trouble {
    int rank;
    std::string how;
  };
  std::optional<Trouble> trouble;
};

class ExitStatusPage {
 public:
  // A new page of this process; without memfd it has no readers.
  ExitStatusPage();
  // Another rank's page; nullptr if it cannot be opened because the process is gone or belongs to
  // another user.
  static std::unique_ptr<ExitStatusPage> open(int pid, int fd);
  ~ExitStatusPage();
  ExitStatusPage(const ExitStatusPage&) = delete;
  ExitStatusPage& operator=(const ExitStatusPage&) = delete;

  int fd() const { return file_.get(); }  // -1 without memfd.

  // REQUIRES: it is a page of this process. Only the first record of each kind is kept.
  void record_failure(int rank, const std::string& how);
  void record_end(ExitStatus::End end);

  ExitStatus read() const;

 private:
  struct Page;
  explicit ExitStatusPage(Page* page) : page_(page) {}
  Descriptor file_;
  Page* page_ = nullptr;
};

}  // namespace sherd::world
