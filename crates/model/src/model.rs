//! A loaded model: the table and its weights.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kernels::packed::{InputKind, PackedMatrix};
use kernels::pool::Pool;
use kernels::rope::{RopeTable, inv_freq};
use weights::gguf::Gguf;
use weights::load::{LoadOptions, Loader};

use crate::arch;
use crate::architecture::{
    Architecture, Branch, BranchInput, Ffn, GatedSpec, LinearSpec, Mixer, NormSpec, Operation,
    Residual, RopeScaling, RopeSpec,
};
use crate::error::ModelError;
use crate::linear::Linear;
use crate::norm::Norm;

/// A model ready to run.
#[derive(Debug)]
pub struct Model {
    /// What it is.
    pub architecture: Architecture,
    pub(crate) embedding: Arc<PackedMatrix>,
    pub(crate) blocks: Vec<Vec<LoadedBranch>>,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) final_norm: Norm,
    pub(crate) head: Linear,
    weight_bytes: usize,
}

/// A branch with its weights.
#[derive(Debug)]
pub(crate) struct LoadedBranch {
    pub(crate) pre_norm: Option<Norm>,
    pub(crate) operation: LoadedOperation,
    pub(crate) post_norm: Option<Norm>,
    pub(crate) scale: f32,
}

/// An operation with its weights.
#[derive(Debug)]
pub(crate) enum LoadedOperation {
    Attention(LoadedAttention),
    Gated(LoadedGated),
}

#[derive(Debug)]
pub(crate) struct LoadedAttention {
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) o: Linear,
    pub(crate) q_norm: Option<Norm>,
    pub(crate) k_norm: Option<Norm>,
}

#[derive(Debug)]
pub(crate) struct LoadedGated {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl LoadedOperation {
    /// The maps of its linear calls, in the order it makes them.
    fn linear_calls(&self) -> Vec<Vec<&Linear>> {
        match self {
            Self::Attention(LoadedAttention { q, k, v, o, .. }) => vec![vec![q, k, v], vec![o]],
            Self::Gated(LoadedGated { gate, up, down }) => vec![vec![gate, up], vec![down]],
        }
    }
}

/// Fills the table's places with a file's tensors, each read once, and keeps count.
struct Filler<'a> {
    loader: Loader<'a>,
    shared: HashMap<String, Arc<PackedMatrix>>,
    used: HashSet<String>,
    bytes: usize,
}

impl Model {
    /// Loads the model in `file`, packing its weights on all threads of `pool`.
    ///
    /// # Errors
    /// When the architecture or a tensor is not supported, missing, malformed or of the wrong shape.
    pub fn load(file: &Gguf, pool: &Pool, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let architecture = arch::read(file)?;
        check_shapes(&architecture)?;
        let (used, shared) = (HashSet::new(), HashMap::new());
        let loader = Loader::new(file, pool, options);
        let mut filler = Filler {
            loader,
            shared,
            used,
            bytes: 0,
        };
        let hidden = architecture.hidden;
        let table = LinearSpec {
            weight: architecture.embedding.clone(),
            bias: None,
            bias_required: false,
            rows: architecture.vocabulary,
            cols: hidden,
        };
        let embedding = filler.linear(&table)?.weight;
        let ropes = architecture
            .ropes
            .iter()
            .map(|rope| filler.rope(rope))
            .collect::<Result<_, _>>()?;
        let mut blocks = Vec::with_capacity(architecture.blocks.len());
        for block in &architecture.blocks {
            let branches = block
                .branches
                .iter()
                .map(|branch| filler.branch(branch, hidden));
            blocks.push(branches.collect::<Result<_, _>>()?);
        }
        let final_norm = filler.norm(&architecture.final_norm, hidden)?;
        let head = filler.linear(&architecture.head.linear)?;
        filler.refuse_leftovers(architecture.family)?;
        let weight_bytes = filler.bytes;
        Ok(Self {
            architecture,
            embedding,
            blocks,
            ropes,
            final_norm,
            head,
            weight_bytes,
        })
    }

    /// Bytes that the weights take in memory.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The maps of each linear call of a forward pass, in the order of calls.
    pub(crate) fn linear_calls(&self) -> impl Iterator<Item = Vec<&Linear>> {
        let branches = self.blocks.iter().flatten();
        let calls = branches.flat_map(|branch| branch.operation.linear_calls());
        calls.chain([vec![&self.head]])
    }

    /// The widest input of any linear map, which is what quantised activations need room for.
    pub(crate) fn widest_input(&self) -> usize {
        let inner = self
            .blocks
            .iter()
            .flatten()
            .map(|branch| match &branch.operation {
                LoadedOperation::Attention(a) => a.o.weight.cols(),
                LoadedOperation::Gated(g) => g.down.weight.cols(),
            });
        inner.max().unwrap_or(0).max(self.architecture.hidden)
    }

    /// Whether any linear map has floats for weights.
    pub(crate) fn has_float_maps(&self) -> bool {
        let is_float = |map: &Linear| map.weight.input_kind() == InputKind::Float;
        let branches = self.blocks.iter().flatten();
        is_float(&self.head)
            || branches.into_iter().any(|branch| match &branch.operation {
                LoadedOperation::Attention(a) => [&a.q, &a.k, &a.v, &a.o].into_iter().any(is_float),
                LoadedOperation::Gated(g) => [&g.gate, &g.up, &g.down].into_iter().any(is_float),
            })
    }
}

/// Refuses what the table can say but the decoder doesn't run yet.
fn check_shapes(architecture: &Architecture) -> Result<(), ModelError> {
    for (layer, block) in architecture.blocks.iter().enumerate() {
        for branch in &block.branches {
            let features = [
                (branch.input != BranchInput::Stream, "parallel branches"),
                (
                    branch.residual != Residual::Add,
                    "a residual rule other than addition",
                ),
                (
                    branch.pre_norm.is_none(),
                    "a branch without a norm before it",
                ),
            ];
            if let Some((_, feature)) = features.into_iter().find(|(used, _)| *used) {
                let family = architecture.family;
                return Err(ModelError::UnsupportedShape {
                    layer,
                    family,
                    feature,
                });
            }
        }
    }
    Ok(())
}

impl Filler<'_> {
    fn branch(&mut self, branch: &Branch, hidden: usize) -> Result<LoadedBranch, ModelError> {
        let norm = |loader: &mut Self, spec: &Option<NormSpec>| {
            spec.as_ref()
                .map(|spec| loader.norm(spec, hidden))
                .transpose()
        };
        Ok(LoadedBranch {
            pre_norm: norm(self, &branch.pre_norm)?,
            operation: self.operation(&branch.operation)?,
            post_norm: norm(self, &branch.post_norm)?,
            scale: branch.scale,
        })
    }

    fn operation(&mut self, operation: &Operation) -> Result<LoadedOperation, ModelError> {
        match operation {
            Operation::Mixer(Mixer::Attention(spec)) => {
                let head_norm = |loader: &mut Self, norm: &Option<NormSpec>| {
                    norm.as_ref()
                        .map(|norm| loader.norm(norm, spec.head_dim))
                        .transpose()
                };
                Ok(LoadedOperation::Attention(LoadedAttention {
                    q: self.linear(&spec.q)?,
                    k: self.linear(&spec.k)?,
                    v: self.linear(&spec.v)?,
                    o: self.linear(&spec.o)?,
                    q_norm: head_norm(self, &spec.q_norm)?,
                    k_norm: head_norm(self, &spec.k_norm)?,
                }))
            }
            Operation::Ffn(Ffn::Gated(GatedSpec { gate, up, down, .. })) => {
                Ok(LoadedOperation::Gated(LoadedGated {
                    gate: self.linear(gate)?,
                    up: self.linear(up)?,
                    down: self.linear(down)?,
                }))
            }
        }
    }

    /// The map of `spec`; a weight that two maps name is held once.
    fn linear(&mut self, spec: &LinearSpec) -> Result<Linear, ModelError> {
        let weight = if let Some(weight) = self.shared.get(&spec.weight) {
            Arc::clone(weight)
        } else {
            let shape = [spec.rows, spec.cols];
            let matrix = self.loader.matrix(&spec.weight, shape)?;
            self.bytes += matrix.bytes();
            self.used.insert(spec.weight.clone());
            let weight = Arc::new(matrix);
            self.shared.insert(spec.weight.clone(), Arc::clone(&weight));
            weight
        };
        let present = spec
            .bias
            .as_ref()
            .filter(|name| spec.bias_required || self.loader.gguf().find_tensor(name).is_some());
        let bias = present
            .map(|name| self.vector(name, spec.rows))
            .transpose()?;
        Ok(Linear { weight, bias })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let values = self.loader.vector(name, len)?;
        self.bytes += size_of_val(values.as_slice());
        self.used.insert(name.to_owned());
        Ok(values)
    }

    fn norm(&mut self, spec: &NormSpec, width: usize) -> Result<Norm, ModelError> {
        Ok(Norm {
            weight: self.vector(&spec.weight, width)?,
            epsilon: spec.epsilon,
        })
    }

    fn rope(&mut self, spec: &RopeSpec) -> Result<RopeTable, ModelError> {
        let mut frequencies = inv_freq(spec.base, spec.dims);
        match &spec.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear(factor) => frequencies.iter_mut().for_each(|f| *f /= factor),
            RopeScaling::Factors(name) => {
                let factors = self.vector(name, spec.dims / 2)?;
                frequencies
                    .iter_mut()
                    .zip(factors)
                    .for_each(|(f, factor)| *f /= factor);
            }
        }
        Ok(RopeTable::new(frequencies, 1.0))
    }

    /// Every tensor must have had a place: one that is left over would have changed the result.
    fn refuse_leftovers(&self, family: &'static str) -> Result<(), ModelError> {
        let mut tensors = self.loader.gguf().tensors().iter();
        match tensors.find(|tensor| !self.used.contains(tensor.name())) {
            Some(tensor) => Err(ModelError::UnexpectedTensor {
                name: tensor.name().to_owned(),
                family,
            }),
            None => Ok(()),
        }
    }
}
