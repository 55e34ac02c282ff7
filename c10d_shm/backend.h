// SPDX-License-Identifier: Apache-2.0
//
// A c10d backend for CPU tensors of ranks on one host, over shared memory: c10d's calls as
// collectives and messages of bytes (c10d_shm/communicator). Collectives run in the order in which
// they were issued. Work is asynchronous and ends with an error that names the rank at fault when
// one dies, leaves, or is silent beyond the timeout; then the whole group has ended. Ranks that
// call different collectives, or pass sizes that do not match, all get an error and may go on.
// Thread rule: any thread; collectives from one at a time. docs/design/shm_backend.md
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "c10d_shm/communicator/shm_communicator.h"
#include "c10d_shm/group_members.h"
#include "c10d_shm/hook_table.h"
#include "c10d_shm/newer_c10d.h"

namespace sherd::shm {
class HostSegment;  // In shm/join.h.
}  // namespace sherd::shm

namespace sherd::c10d_shm {

class P2pWorker;
class WorkQueue;
struct ShmGroup;  // The segment and what lies in it; in shm_group.h.
struct WorkOptions;

using C10dWork = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

struct ShmBackendOptions final : c10d::Backend::Options {
  explicit ShmBackendOptions(
      std::chrono::milliseconds wait_at_most = kBackendDefaultTimeout)
      : Options("shm", wait_at_most) {}

  // Equal on every rank.
  ShmCommunicatorOptions communicator{};
  // As in ShmGroupOptions; backends made by split() inherit it.
  std::function<void(const std::function<void()>& block)> unlocked{};
  std::function<void(const c10::intrusive_ptr<c10d::Backend>&)> made{};

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  c10::intrusive_ptr<Options> clone() const override {
    return c10::make_intrusive<ShmBackendOptions>(*this);
  }
#endif
};

class ShmBackend final : public c10d::Backend {
 public:
  // Collective: joins the ranks through `store`, which may have served earlier groups
  // (join_attempts.h). Throws sherd::Error on every rank if they cannot share memory. Not collective
  // with options.enable_reconfigure, where c10d supports that: then it joins only in reconfigure().
  ShmBackend(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      c10::intrusive_ptr<ShmBackendOptions> options);
  ~ShmBackend() override;
  // For intrusive_ptr: ends what is open when the last reference is released. Weak references keep
  // the object itself.
  void release_resources() override;

  const std::string getBackendName() const override { return "shm"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override {
    return sequence_.load(std::memory_order_relaxed);
  }
  // This rank is done; operations under way end with an error. Does nothing in a forked child, and
  // so does abort().
  void shutdown() override;
  // The same, and the other ranks end, too.
  void abort() override;

  C10dWork broadcast(
      Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  C10dWork allreduce(
      Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  C10dWork allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  C10dWork reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  C10dWork allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& opts) override;
  C10dWork _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& opts) override;
  C10dWork allgather_coalesced(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& opts) override;
  C10dWork allgather_into_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& opts) override;
  C10dWork gather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::GatherOptions& opts) override;
  C10dWork scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ScatterOptions& opts) override;
  C10dWork reduce_scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  C10dWork _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& opts) override;
  C10dWork reduce_scatter_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  C10dWork alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<std::int64_t>& output_split_sizes,
      std::vector<std::int64_t>& input_split_sizes,
      const c10d::AllToAllOptions& opts) override;
  C10dWork alltoall(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllToAllOptions& opts) override;
  C10dWork barrier(const c10d::BarrierOptions& opts) override;
  // Messages are not ordered with collectives, nor with messages of other ranks or tags.
  C10dWork send(Tensors& tensors, int destination, int tag) override;
  C10dWork recv(Tensors& tensors, int source, int tag) override;
  C10dWork recvAnysource(Tensors& tensors, int tag) override;

  // Called when the group ends with an error, on the thread that notices it and before the
  // operation under way throws the error; and by abort(). Hooks may be called again for the same
  // failure. A hook must neither call shutdown() or abort() nor release the backend: they wait for
  // operations that end only after the hook, and abort() calls the hooks once more.
  HookTable<>& abort_hooks() { return *abort_hooks_; }

#ifdef C10D_BACKEND_HAS_HOOKS
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override {
    abort_hooks_->set(id, std::move(hook));
  }
  void unregisterAbortHook(std::int64_t id) override {
    abort_hooks_->remove(id);
  }
#endif
#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
  bool supportsAbortHooks() const override { return true; }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(
      std::int64_t id, c10d::CompletionHook hook) override {
    completion_hooks_->set(id, std::move(hook));
  }
  void unregisterCompletionHook(std::int64_t id) override {
    completion_hooks_->remove(id);
  }
#endif
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Collective over the members that opts.handles names, each of which has made its backend with a
  // store that leads to the same keys. Leaves the group that this backend was in, whose other ranks
  // then find that it has left, and forms a group of the members. Returns when all have joined. If
  // opts is invalid, it throws and leaves the present group unchanged; if members do not come in
  // time, it throws and there is no group, so that the next call may try again.
  C10dWork reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif

#ifdef C10D_BACKEND_HAS_WINDOW
  bool supportsWindow() const override { return true; }
  c10::intrusive_ptr<c10d::Window> new_window(
      const std::optional<at::Tensor>& tensor) override;
#endif

  // Collective: memory that the ranks of the group share, initially zeros. Throws sherd::Error.
  shm::HostSegment join_memory(const std::string& what, std::size_t bytes);

  bool supportsSplitting() const override { return true; }
  // A backend for these ranks of this group; null on other ranks.
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& opts) override;

 private:
  struct CollectiveOperation;
  // Collective: forms the group of rank_ and size_ through `store`.
  void join(
      const c10::intrusive_ptr<c10d::Store>& store,
      std::chrono::milliseconds timeout);
  bool has_group() const { return group_ != nullptr; }
  // Releases the group, if there is one. REQUIRES: shutdown(), or a forked child.
  void drop_group();
  // A forked child has the objects of a group, but no part in it.
  bool in_forked_child() const;
  void expect_not_forked() const;
  // Throws if there is none, or in a forked child.
  void expect_group() const;
  std::uint64_t global_rank() const;
  WorkOptions work_options(
      c10d::OpType type,
      const char* title,
      Tensors inputs,
      Tensors outputs) const;
  C10dWork issue(CollectiveOperation operation);
  // Runs with the timeout of c10d's `opts`, and waits for the end unless asyncOp is set.
  template <typename Opts>
  C10dWork issue(CollectiveOperation operation, const Opts& opts);
  C10dWork receive(c10d::OpType type, Tensors& tensors, int source, int tag);

  const c10::intrusive_ptr<ShmBackendOptions> options_;
  std::shared_ptr<ShmGroup> group_;
  std::shared_ptr<WorkQueue> queue_;
  std::shared_ptr<P2pWorker> p2p_;
  // Only a number: callbacks issue operations on other threads.
  std::atomic<std::uint64_t> sequence_{0};
  // The store with which it was joined.
  c10::intrusive_ptr<c10d::Store> group_store_;
  // How many segments the group has joined.
  int memories_ = 0;
  const std::shared_ptr<HookTable<>> abort_hooks_ =
      std::make_shared<HookTable<>>();
#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
  const std::shared_ptr<CompletionHooks> completion_hooks_ =
      std::make_shared<CompletionHooks>();
#endif
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  const c10::intrusive_ptr<c10d::Store> store_;
  const MemberHandle handle_;
  // The uuids of the groups that this one has been in.
  std::set<std::int64_t> uuids_;
#endif
};

}  // namespace sherd::c10d_shm
