// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/window.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include "base/check.h"
#include "c10d_shm/fork_mark.h"
#include "shm/join.h"
#include "shm/waiter.h"

namespace sherd::c10d_shm {
namespace {

constexpr std::int64_t kDimensionsMax = 16;

// What a rank tells the others about its tensor.
struct Registered {
  std::int64_t usable = 0;
  std::int64_t storage_bytes = 0;
  std::int64_t begin_bytes = 0;  // Where the tensor begins in its storage.
  std::int64_t dtype = 0;
  std::int64_t dimensions = 0;
  std::array<std::int64_t, kDimensionsMax> sizes{};

  at::IntArrayRef shape() const {
    return {sizes.data(), static_cast<std::size_t>(dimensions)};
  }
};
constexpr auto kNumbers =
    static_cast<std::int64_t>(sizeof(Registered) / sizeof(std::int64_t));

struct Lent {
  std::shared_ptr<void> memory;
  std::shared_ptr<std::atomic<bool>> in_use;
};

void give_back(void* context) {
  const std::unique_ptr<Lent> lent(static_cast<Lent*>(context));
}

bool lies_in_a_window(const at::Tensor& tensor) {
  const auto& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &give_back &&
      static_cast<Lent*>(pointer.get_context())->in_use->load();
}

Registered description_of(const at::Tensor& tensor) {
  Registered all;
  if (!tensor.defined() || !tensor.device().is_cpu() ||
      tensor.layout() != c10::kStrided || !tensor.is_contiguous() ||
      tensor.is_conj() || tensor.is_neg() || tensor.dim() > kDimensionsMax ||
      lies_in_a_window(tensor)) {
    return all;
  }
  all.usable = 1;
  all.storage_bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  all.begin_bytes = tensor.storage_offset() * tensor.element_size();
  all.dtype = static_cast<std::int64_t>(tensor.scalar_type());
  all.dimensions = tensor.dim();
  std::ranges::copy(tensor.sizes(), all.sizes.begin());
  return all;
}

std::vector<Registered> gathered(ShmBackend& backend, const Registered& mine) {
  auto input = at::empty({kNumbers}, at::kLong);
  std::memcpy(input.mutable_data_ptr(), &mine, sizeof(mine));
  auto output = at::empty({backend.getSize() * kNumbers}, at::kLong);
  backend._allgather_base(output, input, {})->wait();
  std::vector<Registered> all(static_cast<std::size_t>(backend.getSize()));
  std::memcpy(
      all.data(), output.const_data_ptr(), all.size() * sizeof(Registered));
  return all;
}

}  // namespace

struct ShmWindow::Memory {
  const ForkMark process{};
  std::vector<Registered> tensors;  // Indexed by rank.
  std::vector<std::size_t> begins;  // By rank: where its storage begins.
  shm::HostSegment segment;
  // This rank when the tensors were registered: the backend may have been reconfigured since.
  int own = segment.peers().rank();
  SteadyClock clock{};
  std::shared_ptr<std::atomic<bool>> in_use =
      std::make_shared<std::atomic<bool>>(true);

  Memory(std::vector<Registered> all, shm::HostSegment joined)
      : tensors(std::move(all)),
        begins(begins_of(tensors)),
        segment(std::move(joined)) {}

  static std::vector<std::size_t> begins_of(
      const std::vector<Registered>& tensors) {
    std::vector<std::size_t> begins;
    auto at = shm::round_up_to_pages(
        tensors.size() * tensors.size() * sizeof(shm::CounterCell));
    for (const auto& tensor : tensors) {
      begins.push_back(at);
      at += shm::round_up_to_pages(
          static_cast<std::size_t>(tensor.storage_bytes));
    }
    begins.push_back(at);  // The sum over all ranks.
    return begins;
  }

  int ranks() const { return static_cast<int>(tensors.size()); }
  const Registered& of(int rank) const {
    return tensors[static_cast<std::size_t>(rank)];
  }
  std::byte* storage(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return segment
        .at<std::byte>(
            begins[r], static_cast<std::size_t>(tensors[r].storage_bytes))
        .data();
  }
  shm::Counter signals(int from, int to) const {
    const auto place = static_cast<std::size_t>(from) * tensors.size() +
        static_cast<std::size_t>(to);
    return shm::Counter(
        segment.at<shm::CounterCell>(place * sizeof(shm::CounterCell), 1)[0]);
  }
};

ShmWindow::ShmWindow(c10::intrusive_ptr<ShmBackend> backend)
    : backend_(std::move(backend)) {}

ShmWindow::~ShmWindow() {
  if (memory_ && !memory_->process.in_child()) {
    memory_->in_use->store(false);
    memory_->segment.peers().leave();
  }
}

std::chrono::milliseconds ShmWindow::timeout() const {
  return backend_->getBackendOptions()->timeout;
}

ShmWindow::Memory& ShmWindow::memory() const {
  SHERD_CHECK_AS(
      kFailedPrecondition, memory_,
      "[c10d_shm] a window: expected a registered tensor, found none");
  memory_->process.expect_not_forked();
  return *memory_;
}

void ShmWindow::expect_rank(int rank) const {
  SHERD_CHECK(
      rank >= 0 && rank < memory().ranks(),
      "[c10d_shm] a window: expected a rank from 0 to ", memory().ranks() - 1,
      ", found ", rank);
}

void ShmWindow::register_tensor(const at::Tensor& tensor, bool owning) {
  const auto all =
      gathered(*backend_, memory_ ? Registered() : description_of(tensor));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    SHERD_CHECK(
        all[rank].usable == 1, "[c10d_shm] a window: rank ", rank,
        " cannot register its tensor; expected a dense, contiguous one of at "
        "most ",
        kDimensionsMax,
        " dimensions on the CPU that lies in no window and is no lazy "
        "conjugate "
        "or negative, and a window without one");
  }
  const auto begins = Memory::begins_of(all);
  memory_ = std::make_shared<Memory>(
      all, backend_->join_memory("window", begins.back()));
  waited_.assign(all.size(), 0);
  auto* mine = memory_->storage(memory_->own);
  const auto& storage = tensor.storage();
  if (storage.nbytes() > 0) {
    std::memcpy(mine, storage.data(), storage.nbytes());
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(
      mine, std::make_unique<Lent>(Lent{memory_, memory_->in_use}).release(),
      &give_back, at::kCPU));
  if (owning) {
    owned_ = tensor;
  }
  backend_->barrier({})->wait();  // No rank puts before all values have moved.
}

void ShmWindow::deregister_tensor() {
  (void)memory();
  backend_->barrier({})->wait();
  memory_->in_use->store(false);
  memory_->segment.peers().leave();
  memory_.reset();
  owned_.reset();
}

void ShmWindow::put(const at::Tensor& tensor, int rank, std::int64_t offset) {
  expect_rank(rank);
  auto target = tensor_of(rank).view({-1});
  SHERD_CHECK(
      tensor.device().is_cpu() && tensor.scalar_type() == target.scalar_type(),
      "[c10d_shm] put: expected a tensor on the CPU of the dtype of rank ",
      rank, "'s, ", c10::toString(target.scalar_type()), ", found ",
      c10::toString(tensor.scalar_type()), " on ", tensor.device().str());
  SHERD_CHECK(
      offset >= 0 && offset + tensor.numel() <= target.numel(),
      "[c10d_shm] put: expected elements within the ", target.numel(),
      " of rank ", rank, ", found ", offset, " to ", offset + tensor.numel());
  target.narrow(0, offset, tensor.numel()).copy_(tensor.detach().reshape({-1}));
}

at::Tensor ShmWindow::tensor_of(int rank) {
  expect_rank(rank);
  const auto& found = memory().of(rank);
  return at::from_blob(
      memory().storage(rank) + found.begin_bytes, found.shape(),
      [keeps = memory_](void* /*data*/) {},
      at::dtype(static_cast<at::ScalarType>(found.dtype)));
}

void ShmWindow::signal(int rank) {
  expect_rank(rank);
  memory().signals(memory().own, rank).advance();
}

std::uint64_t ShmWindow::next_signal(int rank) {
  expect_rank(rank);
  const std::lock_guard lock(mu_);
  return ++waited_[static_cast<std::size_t>(rank)];
}

bool ShmWindow::has_signal(int rank, std::uint64_t number) const {
  expect_rank(rank);
  return memory().signals(rank, memory().own).reached(number);
}

void ShmWindow::wait_for_signal(
    int rank, std::uint64_t number, std::chrono::milliseconds at_most) {
  expect_rank(rank);
  const auto own = memory().own;
  const auto signals = memory().signals(rank, own);
  SHERD_CHECK_AS(
      kFailedPrecondition, rank != own || signals.reached(number),
      "[c10d_shm] a window: expected a signal of rank ", rank,
      " to itself before it waits for that, found none");
  if (rank != own) {
    const shm::Waiter waiter(
        memory().segment.peers(), memory().clock, {.deadline = at_most});
    waiter.wait(signals, number, {.rank = rank, .what = "a signal"})
        .throw_if_failed();
  }
}

}  // namespace sherd::c10d_shm
