//! The one way from the decoder to arithmetic.
//!
//! Everything the decoder computes goes through [`Ops`], so that a second back end needs to be written
//! against this page only.

use kernels::attention::{self, AttentionArgs, AttentionError, AttentionScratch};
use kernels::isa::Isa;
use kernels::matmul::{self, Product, QuantizedRows};
use kernels::packed::{InputKind, PackedMatrix};
use kernels::pages::{KvSlot, PageError, PageStore};
use kernels::pool::Pool;
use kernels::rope::{self, RopeStyle, RopeTable};
use kernels::rows::{for_each_row, for_each_row_pair};
use kernels::{gate, norm, reduce};

use crate::architecture::Activation;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::profile::{OpKind, Profile};

/// Arithmetic on the CPU, with one instruction set and one pool of threads.
#[derive(Debug)]
pub struct Ops {
    isa: Isa,
    pool: Pool,
    profile: Profile,
}

/// Activations of a step and, where a weight asks for them, their quantised form.
pub struct Activations<'a> {
    /// `rows × cols`.
    pub values: &'a [f32],
    /// Number of rows.
    pub rows: usize,
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

    /// `out = norm(x)`, row by row.
    pub fn norm(&self, norm: &Norm, x: &mut [f32], out: &mut [f32]) {
        let _timer = self.profile.timer(OpKind::Norm);
        let width = norm.weight.len();
        for_each_row_pair(&self.pool, x, width, out, width, &|_, x, out| {
            norm::rms_norm(self.isa, x, &norm.weight, norm.epsilon, out);
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
    pub fn linear<const N: usize>(
        &self,
        x: &Activations<'_>,
        quantized: &mut QuantizedRows,
        maps: [(&Linear, &mut [f32]); N],
    ) {
        let cols = x.values.len() / x.rows;
        let is = |kind| maps.iter().any(|(map, _)| map.weight.input_kind() == kind);
        if is(InputKind::Quantized) {
            let _timer = self.profile.timer(OpKind::Quantize);
            quantized.quantize(self.isa, &self.pool, x.values, x.rows, cols);
        }
        let mixed = is(InputKind::Quantized) && is(InputKind::Float);
        let mut products = maps.map(|(map, out)| {
            (
                map,
                Product {
                    weight: &map.weight,
                    out,
                },
            )
        });
        let quantized = &*quantized;
        let input = |kind| match kind {
            InputKind::Quantized => matmul::Input::Quantized(quantized),
            InputKind::Float => matmul::Input::Float {
                x: x.values,
                rows: x.rows,
            },
        };
        if mixed {
            for (map, product) in &mut products {
                let kind = map.weight.input_kind();
                self.matmul(x.rows, input(kind), std::slice::from_mut(product));
            }
            self.bias(products);
        } else {
            let kind = products[0].0.weight.input_kind();
            let linears = products.each_ref().map(|(map, _)| *map);
            let mut products = products.map(|(_, product)| product);
            self.matmul(x.rows, input(kind), &mut products);
            let mut linears = linears.into_iter();
            self.bias(products.map(|p| (linears.next().unwrap_or_else(|| unreachable!()), p)));
        }
    }

    fn matmul(&self, rows: usize, input: matmul::Input<'_>, products: &mut [Product<'_>]) {
        let timer = self.profile.timer(OpKind::Matmul);
        for Product { weight, .. } in &*products {
            timer.product(rows * weight.rows() * weight.cols(), weight.bytes());
        }
        matmul::matmul(self.isa, &self.pool, input, products);
    }

    fn bias<const N: usize>(&self, products: [(&Linear, Product<'_>); N]) {
        for (map, product) in products {
            if let Some(bias) = &map.bias {
                let _timer = self.profile.timer(OpKind::Bias);
                for_each_row(&self.pool, product.out, bias.len(), &|_, row| {
                    reduce::add_assign(self.isa, row, bias);
                });
            }
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

    /// `gate = act(gate) · up`.
    pub fn gate(&self, activation: Activation, gate: &mut [f32], up: &mut [f32], width: usize) {
        let _timer = self.profile.timer(OpKind::Gate);
        for_each_row_pair(
            &self.pool,
            gate,
            width,
            up,
            width,
            &|_, gate, up| match activation {
                Activation::Silu => gate::silu_gate(self.isa, gate, up),
                Activation::GeluTanh => gate::gelu_tanh_gate(self.isa, gate, up),
            },
        );
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
    cos: Vec<f32>,
    sin: Vec<f32>,
    rows: usize,
}

impl Angles {
    /// Room for `capacity` rows of `dims` turning dimensions.
    #[must_use]
    pub fn new(dims: usize, capacity: usize) -> Self {
        let half = dims / 2;
        Self {
            half,
            cos: vec![0.0; capacity * half],
            sin: vec![0.0; capacity * half],
            rows: 0,
        }
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
