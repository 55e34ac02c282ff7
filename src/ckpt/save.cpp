// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "base/caught.h"
#include "base/check.h"
#include "ckpt/session.h"
#include "ckpt/state_access.h"

namespace sherd {

using ckpt::Piece;

struct CheckpointSaver::Impl {
  Impl(const World& world, const std::string& folder, SaveOptions options)
      : files(ckpt::make_posix_files()),
        session{
            .files = *files,
            .folder = folder,
            .rank = world.rank(),
            .size = world.size(),
            .gather = ckpt::make_gather(world),
            .options = options} {
    Status status;
    if (world.rank() == 0) {
      status = prepare();
    }
    agree(session, status, "opening a folder for checkpoints")
        .throw_if_failed();
  }

  ~Impl() { (void)join(); }

  Status prepare() {
    auto status = make_lasting_folder(*files, session.folder);
    if (status.ok()) {
      auto locked = ckpt::lock_folder(session.folder);
      status = locked.status();
      if (locked.ok()) {
        lock = std::move(locked).value();
      }
    }
    return status.ok() ? clean_up(*files, session.folder) : status;
  }

  // The copies keep their memory for the next save.
  void copy(std::vector<Piece>& pieces) {
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
    return std::exchange(outcome, {});
  }

  const std::unique_ptr<ckpt::Files> files;
  const ckpt::Session session;
  std::unique_ptr<ckpt::FolderLock> lock;  // Of rank 0.
  std::vector<at::Tensor> copies;
  Status outcome;  // Of the writer, when it has ended.
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
    save_pieces(impl.session, step, pieces, state.values).throw_if_failed();
    return;
  }
  impl.copy(pieces);
  impl.writer = std::thread(
      [&impl, step, pieces = std::move(pieces), values = state.values] {
        impl.outcome = save_pieces(impl.session, step, pieces, values);
      });
  ::pthread_setname_np(impl.writer.native_handle(), "sherd-save");
}

void CheckpointSaver::wait() { impl_->join().throw_if_failed(); }

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
