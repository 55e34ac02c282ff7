// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/window.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include <utility>
#include "c10d_shm/work.h"

namespace sherd::c10d_shm {
namespace {

// Waits in wait(), on the caller's thread.
class SignalWork final : public c10d::Work {
 public:
  SignalWork(
      std::shared_ptr<ShmWindow> window,
      int rank,
      std::chrono::milliseconds at_most)
      : window_(std::move(window)),
        rank_(rank),
        number_(window_->next_signal(rank)),
        at_most_(at_most) {}

  bool isCompleted() override { return window_->has_signal(rank_, number_); }
  bool wait(std::chrono::milliseconds timeout) override {
    window_->wait_for_signal(
        rank_, number_, timeout == kNoTimeout ? at_most_ : timeout);
    return true;
  }

 private:
  const std::shared_ptr<ShmWindow> window_;
  const int rank_;
  const std::uint64_t number_;
  const std::chrono::milliseconds at_most_;
};

class C10dWindow final : public c10d::Window {
 public:
  explicit C10dWindow(std::shared_ptr<ShmWindow> window)
      : window_(std::move(window)) {}

  void tensor_register(const at::Tensor& tensor, bool owning) override {
    window_->register_tensor(tensor, owning);
  }
  void tensor_deregister() override { window_->deregister_tensor(); }

  c10::intrusive_ptr<c10d::Work> put(
      const at::Tensor& tensor,
      std::int64_t rank,
      std::int64_t offset,
      bool /*async*/,
      const c10d::PutOptions& /*options*/) override {
    window_->put(tensor, static_cast<int>(rank), offset);
    return completed_work({.title = "shm:put"});
  }
  at::Tensor map_remote_tensor(std::int64_t rank) override {
    return window_->tensor_of(static_cast<int>(rank));
  }
  c10::intrusive_ptr<c10d::Work> signal(
      std::int64_t rank,
      bool /*async*/,
      const c10d::SignalOptions& /*options*/) override {
    window_->signal(static_cast<int>(rank));
    return completed_work({.title = "shm:signal"});
  }
  c10::intrusive_ptr<c10d::Work> wait_signal(
      std::int64_t rank,
      bool async,
      const c10d::WaitSignalOptions& options) override {
    auto work = c10::make_intrusive<SignalWork>(
        window_, static_cast<int>(rank),
        options.timeout == c10d::kUnsetTimeout ? window_->timeout()
                                               : options.timeout);
    if (!async) {
      work->wait(kNoTimeout);
    }
    return work;
  }
  c10d::WindowAttr get_attr(std::int64_t /*rank*/) override {
    return {.access_type = c10d::WindowAccessType::UNIFIED};
  }

 private:
  const std::shared_ptr<ShmWindow> window_;
};

}  // namespace

c10::intrusive_ptr<c10d::Window> make_c10d_window(
    std::shared_ptr<ShmWindow> window) {
  return c10::make_intrusive<C10dWindow>(std::move(window));
}

}  // namespace sherd::c10d_shm
#endif
