// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "base/status_from_exception.h"
#include "base/check.h"
#include "base/clock.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"

namespace sherd {

using ckpt::TensorPiece;

namespace {

// For another's save into a shared folder.
constexpr Duration kLockTimeout = std::chrono::minutes(1);
constexpr Duration kLockPollInterval = std::chrono::milliseconds(50);
// What rank 0 says of a checkpoint.
constexpr const char* kAlreadySaved = "there";

}  // namespace

struct CheckpointSaver::Impl {
  Impl(const World& world, const std::string& folder, SaveOptions options)
      : files(ckpt::make_posix_file_system()),
        session{
            .files = *files,
            .folder = folder,
            .rank = world.rank(),
            .size = world.size(),
            .gather = ckpt::make_private_all_gather(world),
            .options = std::move(options)} {
    Status status;
    if (world.rank() == 0) {
      status = prepare();
    }
    agree(session, status, "opening a folder for checkpoints")
        .throw_if_failed();
  }

  ~Impl() { (void)join(); }

  Status prepare() {
    const auto status = make_durable_folder(*files, session.folder);
    return status.ok() && !session.options.shared
        ? take_folder(SteadyClock().now())
        : status;
  }

  // Locks and cleans it up, when others leave it until then.
  Status take_folder(Instant deadline) {
    auto locked = ckpt::lock_folder(session.folder);
    while (!locked.ok() && SteadyClock().now() < deadline) {
      std::this_thread::sleep_for(kLockPollInterval);
      locked = ckpt::lock_folder(session.folder);
    }
    if (!locked.ok()) {
      return locked.status();
    }
    lock = std::move(locked).value();
    return clean_up(*files, session.folder);
  }

  // Collective: all of a save but its copies.
  Status write(
      std::int64_t step,
      const std::vector<TensorPiece>& pieces,
      const std::map<std::string, std::string>& values) {
    if (!session.options.shared) {
      return save_pieces(session, step, pieces, values);
    }
    const auto status = write_shared(step, pieces, values);
    lock.reset();
    return status;
  }

  Status write_shared(
      std::int64_t step,
      const std::vector<TensorPiece>& pieces,
      const std::map<std::string, std::string>& values) {
    const auto what = str("saving step ", step);
    Status status;
    std::string mine;
    if (session.rank == 0) {
      status = take_folder(SteadyClock().now() + kLockTimeout);
      mine = status.ok() && is_already_saved(step, values) ? kAlreadySaved : "";
    }
    status = agree(session, status, what);
    if (!status.ok()) {
      return status;
    }
    const auto all = session.gather(mine, what);
    if (!all.ok() || all.value().front() == kAlreadySaved) {
      return all.status();
    }
    return save_pieces(session, step, pieces, values);
  }

  // Saved by others; one that cannot be read is not.
  bool is_already_saved(
      std::int64_t step,
      const std::map<std::string, std::string>& values) const {
    bool there = false;
    const auto place = session.folder + "/" + ckpt::folder_name(step);
    const auto read = status_of(
        [&] {
          there = ckpt::CheckpointReader(place).manifest().values == values;
          return Status();
        },
        ErrorCode::kUnavailable);
    return read.ok() && there;
  }

  // The copies keep their memory for the next save.
  void copy(std::vector<TensorPiece>& pieces) {
    const at::NoGradGuard no_grad;
    copies.resize(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      auto& elements = pieces[i].elements;
      if (!copies[i].defined() || copies[i].sizes() != elements.sizes() ||
          copies[i].scalar_type() != elements.scalar_type()) {
        copies[i] = at::empty_like(elements);
      }
      copies[i].copy_(elements);
      elements = copies[i];
    }
  }

  Status join() {
    if (writer.joinable()) {
      writer.join();
    }
    writes.store(false, std::memory_order_relaxed);
    return std::exchange(outcome, {});
  }

  const std::unique_ptr<ckpt::FileSystem> files;
  const ckpt::SaveContext session;
  std::unique_ptr<ckpt::FolderLock> lock;  // Of rank 0; shared: while it saves.
  std::vector<at::Tensor> copies;
  Status outcome;  // Of the writer, when it has ended.
  // A hint: `outcome` is read behind join() alone, which orders memory.
  std::atomic<bool> writes{false};
  std::thread writer;
};

CheckpointSaver::CheckpointSaver(
    const World& world, const std::string& folder, const SaveOptions& options) {
  SHERD_CHECK(
      options.keep_last >= 0 && options.keep_every >= 0 &&
          options.file_bytes_max >= 1,
      "[ckpt] expected keep_last and keep_every of at least 0 and "
      "file_bytes_max of at least 1, found ",
      options.keep_last, ", ", options.keep_every, " and ",
      options.file_bytes_max);
  impl_ = std::make_unique<Impl>(world, folder, options);
}

CheckpointSaver::~CheckpointSaver() = default;
CheckpointSaver::CheckpointSaver(CheckpointSaver&&) noexcept = default;

void CheckpointSaver::save(std::int64_t step, const CheckpointState& state) {
  wait();
  SHERD_CHECK(step >= 0, "[ckpt] expected a step of at least 0, found ", step);
  auto& impl = *impl_;
  auto pieces =
      CheckpointAccess::pieces(state, impl.session.rank, impl.session.size);
  if (!impl.session.options.asynchronous) {
    impl.write(step, pieces, state.values).throw_if_failed();
    return;
  }
  impl.copy(pieces);
  impl.writes.store(true, std::memory_order_relaxed);
  impl.writer = std::thread(
      [&impl, step, pieces = std::move(pieces), values = state.values] {
        impl.outcome = impl.write(step, pieces, values);
        impl.writes.store(false, std::memory_order_relaxed);
      });
  ::pthread_setname_np(impl.writer.native_handle(), "sherd-save");
}

void CheckpointSaver::wait() { impl_->join().throw_if_failed(); }

bool CheckpointSaver::saving() const {
  return impl_->writes.load(std::memory_order_relaxed);
}

std::optional<std::string> CheckpointSaver::newest() const {
  const auto& session = impl_->session;
  const auto what = "the newest checkpoint in " + session.folder;
  std::string mine;
  const auto status = status_of(
      [&] {
        if (session.rank == 0) {
          mine = newest_checkpoint(session.folder).value_or("");
        }
        return Status();
      },
      ErrorCode::kUnavailable);
  agree(session, status, what).throw_if_failed();
  const auto all = session.gather(mine, what);
  const auto& newest = all.value().front();
  return newest.empty() ? std::nullopt : std::optional(newest);
}

}  // namespace sherd
