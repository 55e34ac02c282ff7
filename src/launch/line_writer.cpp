// SPDX-License-Identifier: Apache-2.0
#include "launch/line_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <climits>
#include "base/check.h"

namespace sherd::launch {

LineWriter::LineWriter(int fd) : fd_(fd) {
  struct stat status = {};
  const bool known = ::fstat(fd, &status) == 0;
  is_file_ = known && S_ISREG(status.st_mode);
  // A terminal that poll() calls writable may still have room for less than is written.
  if (known && (S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode))) {
    own_ = Descriptor(::open(
        str("/proc/self/fd/", fd).c_str(),
        O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
}

void LineWriter::add_line(std::string_view prefix, std::string_view line) {
  if (abandoned_) {
    return;
  }
  pending_ += prefix;
  pending_ += line;
  pending_ += '\n';
}

void LineWriter::write_some() {
  std::string_view rest = std::string_view(pending_).substr(written_);
  // A writable pipe has room for PIPE_BUF bytes; more could block. Ending on a line keeps lines
  // whole if there are other writers.
  if (!is_file_ && rest.size() > PIPE_BUF) {
    rest = rest.substr(0, PIPE_BUF);
    const std::size_t end = rest.rfind('\n');
    rest = rest.substr(0, end == std::string_view::npos ? PIPE_BUF : end + 1);
  }
  const ssize_t count = ::write(fd(), rest.data(), rest.size());
  if (count < 0) {
    if (errno == EINTR || errno == EAGAIN) {
      return;
    }
    closed_ = errno == EPIPE;
    error_ = closed_ ? 0 : errno;
    abandon();
    return;
  }
  written_ += static_cast<std::size_t>(count);
  // Erasing only now and then keeps the cost per byte constant.
  if (written_ == pending_.size() || written_ > kPendingBytesMax) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

void LineWriter::abandon() {
  abandoned_ = true;
  pending_.clear();
  written_ = 0;
}

bool same_file(int a, int b) {
  struct stat first = {};
  struct stat second = {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 &&
      first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace sherd::launch
