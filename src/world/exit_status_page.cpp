// SPDX-License-Identifier: Apache-2.0
#include "world/exit_status_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include "base/check.h"

namespace sherd::world {

// All zeros, as provided by the kernel, is an empty page.
struct ExitStatusPage::Page {
  static constexpr std::uint32_t kMagic = 0x53484e42;
  std::uint32_t magic;
  // 0 nothing, 1 being written, 2 readable. The release store of 2 pairs with the acquire load in
  // read(): a reader that sees 2 also sees rank and text.
  std::atomic<std::uint32_t> trouble_state;
  std::int32_t trouble_rank;
  std::array<char, 480> trouble_text;
  std::atomic<std::uint32_t> end;
};

namespace {

constexpr std::size_t kBytes = 4096;

}  // namespace

ExitStatusPage::ExitStatusPage()
    : file_(::memfd_create("sherd-notice-board", MFD_CLOEXEC)) {
  if (file_.open() && ::ftruncate(file_.get(), kBytes) != 0) {
    file_.close();
  }
  const int flags = file_.open() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, file_.get(), 0);
  SHERD_CHECK_AS(
      kUnavailable, memory != MAP_FAILED,
      "[world] expected one page of memory for the exit status page, found "
      "none");
  static_assert(sizeof(Page) <= kBytes);
  page_ = ::new (memory) Page();
  page_->magic = Page::kMagic;
}

std::unique_ptr<ExitStatusPage> ExitStatusPage::open(int pid, int fd) {
  if (fd < 0) {
    return nullptr;
  }
  const Descriptor file(
      ::open(str("/proc/", pid, "/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (::fstat(file.get(), &info) != 0 || info.st_size != kBytes) {
    return nullptr;
  }
  void* memory = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  auto* page = static_cast<Page*>(memory);
  if (page->magic != Page::kMagic) {
    ::munmap(memory, kBytes);
    return nullptr;
  }
  return std::unique_ptr<ExitStatusPage>(new ExitStatusPage(page));
}

ExitStatusPage::~ExitStatusPage() { ::munmap(page_, kBytes); }

void ExitStatusPage::record_failure(int rank, const std::string& how) {
  std::uint32_t empty = 0;
  if (!page_->trouble_state.compare_exchange_strong(
          empty, 1, std::memory_order_relaxed)) {
    return;
  }
  page_->trouble_rank = rank;
  auto& text = page_->trouble_text;
  const std::size_t n = std::min(how.size(), text.size() - 1);
  std::copy_n(how.data(), n, text.data());
  text[n] = '\0';
  page_->trouble_state.store(2, std::memory_order_release);
}

void ExitStatusPage::record_end(ExitStatus::End end) {
  std::uint32_t none = 0;
  // Release: pairs with the acquire in read(), so that an end is never seen
  // without the trouble posted before it.
  page_->end.compare_exchange_strong(
      none, static_cast<std::uint32_t>(end), std::memory_order_release);
}

ExitStatus ExitStatusPage::read() const {
  ExitStatus notice;
  const auto end = page_->end.load(std::memory_order_acquire);
  notice.end = end == 1 ? ExitStatus::End::kLeft
      : end == 2        ? ExitStatus::End::kGaveUp
                        : ExitStatus::End::kNone;
  if (page_->trouble_state.load(std::memory_order_acquire) == 2) {
    const auto& text = page_->trouble_text;
    const auto* stop = std::ranges::find(text, '\0');
    notice.trouble = ExitStatus::Trouble{
        page_->trouble_rank, std::string(text.begin(), stop)};
  }
  return notice;
}

}  // namespace sherd::world
