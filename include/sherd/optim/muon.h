// SPDX-License-Identifier: Apache-2.0
//
// Muon (Keller Jordan et al. 2024, kellerjordan.github.io/posts/muon): momentum whose update is
// made nearly orthogonal, matrix by matrix, by Newton-Schulz iterations. The numbers are
// torch.optim.Muon's. An update needs the whole matrix, so each is assigned to one rank, which
// keeps its momentum and reads its gradient where ranks share it; on devices they send it in each
// step. Muon is for the matrices inside a network; other parameters take AdamW (split()). It shares
// the slices' memory with whoever made them and owns its state. Thread rule: one thread. Who writes
// what when: docs/design/shared_memory.md.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

// How the learning rate depends on a matrix of r rows and c columns.
enum class MuonScale {
  kOriginal,       // Times sqrt(max(1, r / c)).
  kMatchRmsAdamW,  // Times 0.2 sqrt(max(r, c)): AdamW's rates fit (2502.16982).
};

struct MuonOptions {
  double learning_rate = 1e-3;  // At least 0.
  double momentum = 0.95;       // In [0, 1).
  bool nesterov = true;
  // Decoupled: each step first scales values by 1 - learning rate * this.
  double weight_decay = 0.1;
  MuonScale scale = MuonScale::kOriginal;
  // {a, b, c} of one iteration, X <- a X + (b A + c A A) X with A = X X'.
  std::array<double, 3> coefficients = {3.4445, -4.775, 2.0315};
  int iterations = 5;  // In [1, 100).
  // Above 0. The norm that a gradient is divided by is at least this.
  double epsilon = 1e-7;
  // The dtype of the iterations: kBFloat16, as in PyTorch, or kFloat, which is more exact. With AMX
  // bf16 takes 0.2 to 0.4 of fp32's time.
  at::ScalarType iteration_dtype = at::kBFloat16;
};

class Muon {
 public:
  // The same parameters on every rank. State is allocated when the first gradient of a matrix
  // arrives. Throws Error, on every rank, when an option is out of range; when there is no
  // parameter, or one that is no matrix (split() takes those out); when slices are parts of
  // parameters on the CPU and ranks do not share gradients (FullyShardOptions::share_gradients), or
  // on devices with OptimizerAxes::kBoth. Throws Error for slices as AdamW does.
  explicit Muon(NamedParameters parameters, const MuonOptions& options = {});
  ~Muon();
  Muon(Muon&&) noexcept;
  Muon& operator=(Muon&&) noexcept;
  Muon(const Muon&) = delete;
  Muon& operator=(const Muon&) = delete;

  // Updates every matrix that has a gradient, then publishes; other matrices and their momentum do
  // not change. Gradients are overwritten: their memory holds the update meanwhile, and `.grad()`
  // is undefined afterwards. Collective: every rank calls it, even one without slices. Throws Error
  // on every rank, with values unchanged, if only some ranks have a gradient of a matrix, or if a
  // rank is lost before all updates are made; on devices the next step of all ranks finds that.
  void step();

  // Makes every gradient undefined.
  void zero_grad();

  // Takes effect from the next step() on. Throws Error, changing nothing, unless at least 0 and
  // finite.
  void set_learning_rate(double learning_rate);
  double learning_rate() const;

  // The matrices assigned to this rank, in module order. Each is named on one rank of every
  // replica, and on all ranks where slices are whole (kNoShard).
  std::vector<std::string> names() const;

  // The momentum of a matrix assigned to this rank, in its shape and dtype, zero before its first
  // gradient. It shares the optimizer's memory: writing it restores it. Throws Error for other
  // names, saying which rank has it.
  at::Tensor momentum_buffer(const std::string& name);

  // The momenta of this rank's matrices, each of them whole. Those of matrices without an update
  // are included, and allocated, only with `all`.
  std::vector<OptimizerTensor> tensors(bool all);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
