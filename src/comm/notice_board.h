// SPDX-License-Identifier: Apache-2.0
//
// A NoticeBoard is a page of memory on which a rank leaves its last words for
// the ranks of its host: that it left in order, or what went wrong and which
// rank it blames. Posting is a plain store to memory, so it cannot block or
// fail, needs no store and survives the process: whoever reads the board after
// the death of its writer sees everything posted before.
// The writer owns a memfd; readers map it through /proc/PID/fd/N while the
// writer lives and keep the mapping. Thread rule: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace sherd::comm {

// How a rank ended, and what it had seen go wrong before.
struct Notice {
  enum class End { kNone, kLeft, kGaveUp };
  End end = End::kNone;
  // Set once something went wrong: the rank blamed for it (perhaps the writer
  // itself) and a sentence without subject, e.g. "died".
  struct Trouble {
    int rank;
    std::string how;
  };
  std::optional<Trouble> trouble;
};

class NoticeBoard {
 public:
  // A new board of this process; where memfd is missing it has no readers.
  NoticeBoard();
  // Another rank's board; nullptr where it cannot be opened (the process has
  // gone, another user's process).
  static std::unique_ptr<NoticeBoard> open(int pid, int fd);
  ~NoticeBoard();
  NoticeBoard(const NoticeBoard&) = delete;
  NoticeBoard& operator=(const NoticeBoard&) = delete;

  int fd() const { return fd_; }

  // REQUIRES: a board of this process. Only the first of each is kept.
  void post_trouble(int rank, const std::string& how);
  void post_end(Notice::End end);

  Notice read() const;

 private:
  struct Page;
  NoticeBoard(Page* page, int fd) : page_(page), fd_(fd) {}
  Page* page_;
  int fd_;
};

}  // namespace sherd::comm
