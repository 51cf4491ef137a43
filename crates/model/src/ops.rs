//! The one way from the decoder to arithmetic.
//!
//! Everything the decoder computes goes through [`Ops`], so that a second back end needs to be written
//! against this page only.

use kernels::attention::{self, AttentionArgs, AttentionError, AttentionScratch};
use kernels::buffer::{Buffer, OutOfMemory};
use kernels::isa::Isa;
use kernels::matmul::{self, Product, QuantizedRows};
use kernels::packed::{InputKind, PackedMatrix};
use kernels::pages::{KvSlot, PageError, PageStore};
use kernels::pool::Pool;
use kernels::rope::{self, RopeStyle, RopeTable};
use kernels::rows::{for_each_row, for_each_row_pair};
use kernels::{gate, norm, reduce};

use crate::architecture::Activation;
use crate::linear::{Linear, LinearScratch};
use crate::norm::Norm;
use crate::profile::{OpKind, Profile};

/// Arithmetic on the CPU, with one instruction set and one pool of threads.
#[derive(Debug)]
pub struct Ops {
    isa: Isa,
    pool: Pool,
    profile: Profile,
}

/// Where the activations of a linear map come from, row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// They are there.
    Values(&'a [f32]),
    /// `norm(x)`.
    Normed {
        /// The norm.
        norm: &'a Norm,
        /// What is normed.
        x: &'a [f32],
    },
    /// `act(gate) · up`.
    Gated {
        /// The activation function.
        activation: Activation,
        /// Its argument.
        gate: &'a [f32],
        /// What it is multiplied with.
        up: &'a [f32],
    },
}

impl<'a> Source<'a> {
    /// `x`, normed if there is a norm.
    #[must_use]
    pub(crate) fn normed(norm: Option<&'a Norm>, x: &'a [f32]) -> Self {
        match norm {
            Some(norm) => Self::Normed { norm, x },
            None => Self::Values(x),
        }
    }
}

/// The activations of a linear map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activations<'a> {
    /// `rows × cols` of them.
    pub(crate) source: Source<'a>,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Values in a row.
    pub(crate) cols: usize,
}

impl Activations<'_> {
    /// Row `row`, computed.
    fn row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        let range = row * self.cols..(row + 1) * self.cols;
        match self.source {
            Source::Values(x) => out.copy_from_slice(&x[range]),
            Source::Normed { norm, x } => {
                norm::rms_norm(isa, &x[range], &norm.weight, norm.epsilon, out);
            }
            Source::Gated {
                activation,
                gate,
                up,
            } => {
                out.copy_from_slice(&gate[range.clone()]);
                match activation {
                    Activation::Silu => gate::silu_gate(isa, out, &up[range]),
                    Activation::GeluTanh => gate::gelu_tanh_gate(isa, out, &up[range]),
                }
            }
        }
    }
}

impl Ops {
    /// Operations with `isa` on `pool`.
    #[must_use]
    pub fn new(isa: Isa, pool: Pool) -> Self {
        Self {
            isa,
            pool,
            profile: Profile::default(),
        }
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Where the time goes.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Starts over with measuring where the time goes, or stops.
    pub fn restart_profile(&self, on: bool) {
        self.profile.restart(on);
        self.pool.count_waits(on);
    }

    /// Embedding rows: `out[i] = scale · table[tokens(i)]`.
    pub fn embed(&self, table: &PackedMatrix, scale: f32, tokens: &[u32], out: &mut [f32]) {
        let _timer = self.profile.timer(OpKind::Embed);
        for_each_row(&self.pool, out, table.cols(), &|i, row| {
            table.row(tokens[i] as usize, row);
            if scale != 1.0 {
                reduce::scale(self.isa, row, scale);
            }
        });
    }

    /// Norms in place rows as wide as the norm's weight (whole rows, or heads).
    pub fn norm_in_place(&self, norm: &Norm, x: &mut [f32]) {
        let _timer = self.profile.timer(OpKind::Norm);
        for_each_row(&self.pool, x, norm.weight.len(), &|_, row| {
            norm::rms_norm_in_place(self.isa, row, &norm.weight, norm.epsilon);
        });
    }

    /// `out = W x + b` for maps that read the same activations.
    ///
    /// Where all weights are quantised the activations are too, as they are made.
    pub(crate) fn linear<const N: usize>(
        &self,
        x: Activations<'_>,
        scratch: &mut LinearScratch,
        maps: [(&Linear, &mut [f32]); N],
    ) {
        let is = |kind| maps.iter().any(|(map, _)| map.weight.input_kind() == kind);
        let (any_quantized, any_float) = (is(InputKind::Quantized), is(InputKind::Float));
        if let Some(next) = scratch.after_this_call(x.rows) {
            self.pool.fetch_ahead(next);
        }
        #[cfg(test)]
        scratch.check_order(&maps.each_ref().map(|(map, _)| &map.weight));
        let LinearScratch {
            values, quantized, ..
        } = scratch;
        let values = match x.source {
            Source::Values(values) => Some(values),
            _ if any_float => Some(self.materialize(x, values)),
            _ => None,
        };
        if any_quantized {
            self.quantize(x, values, quantized);
        }
        let quantized = &*quantized;
        let input = |kind| match (kind, values) {
            (InputKind::Quantized, _) => matmul::Input::Quantized(quantized),
            (InputKind::Float, values) => matmul::Input::Float {
                x: values.unwrap_or_else(|| unreachable!("made for float weights")),
                rows: x.rows,
            },
        };
        let linears = maps.each_ref().map(|(map, _)| *map);
        let mut products = maps.map(|(map, out)| Product {
            weight: &map.weight,
            out,
        });
        if any_quantized && any_float {
            for product in &mut products {
                let kind = product.weight.input_kind();
                self.matmul(x.rows, input(kind), std::slice::from_mut(product));
            }
        } else {
            let kind = products[0].weight.input_kind();
            self.matmul(x.rows, input(kind), &mut products);
        }
        for (map, product) in linears.into_iter().zip(products) {
            self.bias(map, product.out);
        }
    }

    /// All rows of `x`, in `values`.
    fn materialize<'v>(&self, x: Activations<'_>, values: &'v mut [f32]) -> &'v [f32] {
        let _timer = self.profile.timer(OpKind::Activations);
        let values = &mut values[..x.rows * x.cols];
        for_each_row(&self.pool, values, x.cols, &|row, out| {
            x.row(self.isa, row, out)
        });
        values
    }

    fn quantize(&self, x: Activations<'_>, values: Option<&[f32]>, quantized: &mut QuantizedRows) {
        let _timer = self.profile.timer(OpKind::Activations);
        match values {
            Some(values) => quantized.quantize(self.isa, &self.pool, values, x.rows, x.cols),
            None => {
                quantized.quantize_with(self.isa, &self.pool, (x.rows, x.cols), &|row, out| {
                    x.row(self.isa, row, out);
                });
            }
        }
    }

    fn matmul(&self, rows: usize, input: matmul::Input<'_>, products: &mut [Product<'_>]) {
        let timer = self.profile.timer(OpKind::Matmul);
        for Product { weight, .. } in &*products {
            timer.product(rows, weight);
        }
        matmul::matmul(self.isa, &self.pool, input, products);
    }

    fn bias(&self, map: &Linear, out: &mut [f32]) {
        if let Some(bias) = &map.bias {
            let _timer = self.profile.timer(OpKind::Bias);
            for_each_row(&self.pool, out, bias.len(), &|_, row| {
                reduce::add_assign(self.isa, row, bias);
            });
        }
    }

    /// Turns every head of every row by its position: `cos` and `sin` hold a row of `dims / 2` each.
    pub fn rope(
        &self,
        style: RopeStyle,
        x: &mut [f32],
        head_dim: usize,
        heads: usize,
        angles: &Angles,
    ) {
        let _timer = self.profile.timer(OpKind::Rope);
        for_each_row(&self.pool, x, head_dim * heads, &|row, values| {
            let (cos, sin) = angles.row(row);
            for head in values.chunks_exact_mut(head_dim) {
                rope::apply(self.isa, style, head, cos, sin);
            }
        });
    }

    /// Attention over pages.
    ///
    /// # Errors
    /// When the call is larger than the scratch memory was made for.
    pub fn attention(
        &self,
        scratch: &mut AttentionScratch,
        args: AttentionArgs<'_>,
    ) -> Result<(), AttentionError> {
        let _timer = self.profile.timer(OpKind::Attention);
        attention::attention(self.isa, &self.pool, scratch, args)
    }

    /// Keys and values of rows to their places.
    ///
    /// # Errors
    /// When a value doesn't fit the type of the pages.
    pub fn write_kv(
        &self,
        store: &mut PageStore,
        slots: &[KvSlot],
        k: &[f32],
        v: &[f32],
    ) -> Result<(), PageError> {
        let _timer = self.profile.timer(OpKind::WriteKv);
        store.write_rows(self.isa, &self.pool, slots, k, v)
    }

    /// `stream += scale · branch`, row by row.
    pub fn add(&self, stream: &mut [f32], branch: &mut [f32], scale: f32, width: usize) {
        let _timer = self.profile.timer(OpKind::Add);
        for_each_row_pair(
            &self.pool,
            stream,
            width,
            branch,
            width,
            &|_, stream, branch| {
                if scale != 1.0 {
                    reduce::scale(self.isa, branch, scale);
                }
                reduce::add_assign(self.isa, stream, branch);
            },
        );
    }

    /// The first value that is not finite, as (row, index).
    #[must_use]
    pub fn first_non_finite(&self, x: &[f32], width: usize) -> Option<(usize, usize)> {
        let _timer = self.profile.timer(OpKind::Check);
        reduce::first_non_finite(self.isa, x).map(|i| (i / width, i % width))
    }

    /// `x = cap · tanh(scale · x / cap)`; without a cap, `x = scale · x`.
    pub fn scale_and_cap(&self, x: &mut [f32], scale: f32, cap: Option<f32>, width: usize) {
        let _timer = self.profile.timer(OpKind::Softcap);
        for_each_row(&self.pool, x, width, &|_, row| {
            if scale != 1.0 {
                reduce::scale(self.isa, row, scale);
            }
            if let Some(cap) = cap {
                reduce::softcap(self.isa, row, cap);
            }
        });
    }
}

/// Cosines and sines of one rotary embedding for the rows of a step.
#[derive(Debug)]
pub struct Angles {
    half: usize,
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    rows: usize,
}

impl Angles {
    /// Room for `capacity` rows of `dims` turning dimensions.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(dims: usize, capacity: usize) -> Result<Self, OutOfMemory> {
        let half = dims / 2;
        let values = capacity.saturating_mul(half);
        Ok(Self {
            half,
            cos: Buffer::zeroed(values)?,
            sin: Buffer::zeroed(values)?,
            rows: 0,
        })
    }

    /// Computes the angles of `positions`.
    pub fn fill(&mut self, ops: &Ops, table: &RopeTable, positions: &[u32]) {
        self.rows = positions.len();
        let n = self.rows * self.half;
        let (cos, sin) = (&mut self.cos[..n], &mut self.sin[..n]);
        for_each_row_pair(
            ops.pool(),
            cos,
            self.half,
            sin,
            self.half,
            &|row, cos, sin| {
                table.angles(positions[row], cos, sin);
            },
        );
    }

    fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let at = row * self.half..(row + 1) * self.half;
        (&self.cos[at.clone()], &self.sin[at])
    }
}
