// SPDX-License-Identifier: Apache-2.0
//
// Muon (Keller Jordan et al. 2024, kellerjordan.github.io/posts/muon): momentum whose update is
// made nearly orthogonal, matrix by matrix, by Newton-Schulz iterations. It computes the same
// numbers as torch.optim.Muon. An update needs the whole matrix, so each matrix is assigned to one
// rank, which keeps its momentum. That rank reads the gradient directly if ranks share gradients;
// on devices the other ranks send it their parts in each step. Muon is for the matrices inside a
// network; give other parameters to AdamW (split()). It shares the slices' memory with the handle
// that made them and owns its state. Thread rule: one thread. Which rank writes what, and when:
// docs/design/shared_memory.md.
#pragma once

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/base/error.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

// How the learning rate of a matrix depends on its r rows and c columns.
enum class MuonScale {
  kOriginal,       // Times sqrt(max(1, r / c)).
  kMatchRmsAdamW,  // Times 0.2 sqrt(max(r, c)): AdamW's rates fit (2502.16982).
};

struct MuonOptions {
  double learning_rate = 1e-3;  // At least 0.
  double momentum = 0.95;       // In [0, 1).
  bool nesterov = true;
  // Decoupled: each step first multiplies values by 1 - learning_rate * weight_decay.
  double weight_decay = 0.1;
  MuonScale scale = MuonScale::kOriginal;
  // {a, b, c} of one iteration, X <- a X + (b A + c A A) X with A = X X^T.
  std::array<double, 3> coefficients = {3.4445, -4.775, 2.0315};
  int iterations = 5;  // In [1, 100).
  // The norm by which a gradient is divided is at least this. Above 0.
  double epsilon = 1e-7;
  // The dtype of the iterations: kBFloat16, as in PyTorch, or kFloat, which is more exact. On CPUs
  // with AMX, bf16 takes 0.2 to 0.4 of the time of fp32.
  at::ScalarType iteration_dtype = at::kBFloat16;
};

class Muon {
 public:
  // Pass the same parameters on every rank. The state of a matrix is allocated when its first
  // gradient arrives. Throws Error, on every rank, if an option is out of range; if there is no
  // parameter, or one that is not a matrix (split() separates them); if slices are parts of
  // parameters on the CPU and ranks do not share gradients (FullyShardOptions::share_gradients), or
  // parts of parameters on devices with OptimizerAxes::kBoth or cpu_offload; and for slices that
  // are not contiguous or that AdamW refuses.
  explicit Muon(NamedParameters parameters, const MuonOptions& options = {});
  ~Muon();
  Muon(Muon&&) noexcept;
  Muon& operator=(Muon&&) noexcept;
  Muon(const Muon&) = delete;
  Muon& operator=(const Muon&) = delete;

  // Updates every matrix that has a gradient, then publishes; other matrices and their momentum do
  // not change. Gradients are overwritten, because their memory holds the updates meanwhile, and
  // `.grad()` is undefined afterwards. Collective: every rank calls it, even one without slices.
  // Throws Error, on every rank and with values unchanged, if only some ranks have a gradient of a
  // matrix, or if a rank is lost before all updates are made. On devices a lost rank is noticed in
  // the next step.
  void step();

  // These are as AdamW's; there are no groups.
  void zero_grad();
  void set_learning_rate(double learning_rate);
  double learning_rate() const;

  // The matrices assigned to this rank, in module order. Each matrix is assigned to one rank of
  // every replica or, if slices are whole (kNoShard), to all ranks.
  std::vector<std::string> names() const;

  // The momentum of a matrix assigned to this rank, in the matrix's shape and dtype, zero before
  // its first gradient. It shares the optimizer's memory: writing it restores it. Throws Error for
  // any other name, and says which rank has it.
  at::Tensor momentum_buffer(const std::string& name);

  // The momenta of this rank's matrices, each of them whole: of those that have had an update and of
  // those named in `also`, whose momenta are allocated if needed. Ignores other names in `also`.
  std::vector<OptimizerTensor> tensors(const std::set<std::string>& also);

 private:
  struct Impl;
  HandleState<std::unique_ptr<Impl>, "[optim] Muon"> impl_;
};

}  // namespace sherd
