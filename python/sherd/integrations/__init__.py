# SPDX-License-Identifier: Apache-2.0
"""sherd under the trainers of other packages, which are imported only by the module
of that name: sherd.integrations.accelerate and sherd.integrations.transformers."""
