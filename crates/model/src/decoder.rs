//! The one decoder: runs a step through the blocks of any architecture.

use std::sync::Arc;

use kernels::fpenv;

use crate::architecture::{Ffn, GatedSpec, Mixer, Operation};
use crate::error::ModelError;
use crate::memory::Memory;
use crate::mixer;
use crate::model::{LoadedGated, LoadedOperation, Model};
use crate::norm::Norm;
use crate::ops::{Activations, Ops, Source};
use crate::step::{Input, Rows, SPANS_MAX, Span, Step};
use crate::workspace::{HEAD_ROWS, Workspace};

/// Runs steps of one model. Holds the buffers, so steps allocate nothing.
#[derive(Debug)]
pub struct Decoder {
    model: Arc<Model>,
    ops: Ops,
    work: Workspace,
}

/// One row of logits, given to the caller of [`Decoder::forward`].
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// The span, by its place in the step.
    pub span: usize,
    /// Absolute position of the row.
    pub position: usize,
    /// One value per entry of the vocabulary, after scale and softcap.
    pub values: &'a [f32],
}

impl Decoder {
    /// A decoder for steps of at most `capacity` rows over at most `context` positions.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn new(
        model: Arc<Model>,
        ops: Ops,
        capacity: usize,
        context: usize,
    ) -> Result<Self, ModelError> {
        let scratch = mixer::attention::scratch(&model.architecture, &ops, capacity, context)?;
        let work = Workspace::new(&model, capacity, ops.pool().threads(), scratch)?;
        Ok(Self { model, ops, work })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The instruction set and pool.
    #[must_use]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Rows of a step at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.work.capacity
    }

    /// Runs `step`, remembers its keys and values, and hands each wanted row of logits to `sink`, by span
    /// and then by position.
    ///
    /// # Errors
    /// When a span asks for what isn't supported, doesn't fit, or the arithmetic leaves the finite numbers.
    /// Nothing is remembered then.
    pub fn forward(
        &mut self,
        memory: &mut Memory,
        step: Step<'_>,
        sink: &mut dyn FnMut(Logits<'_>),
    ) -> Result<(), ModelError> {
        // Part of the work is done on the caller's thread, whose modes are the host's.
        let _environment = fpenv::Guard::new();
        let rows = self.check(memory, step)?;
        if rows == 0 {
            return Ok(());
        }
        for span in step.spans {
            memory.reserve(span.sequence, span.position + span.rows_of(self.hidden()))?;
        }
        memory.move_bytes()?;
        self.work.linear.begin();
        self.enter(step, rows);
        for layer in 0..self.model.blocks.len() {
            self.block(memory, step, layer, rows)?;
        }
        self.leave(step, sink)?;
        for span in step.spans {
            match span.input {
                Input::Tokens(tokens) => memory.commit(span.sequence, tokens)?,
                Input::Vectors(_) => {
                    memory.commit_vectors(span.sequence, span.rows_of(self.hidden()))?;
                }
            }
        }
        Ok(())
    }

    fn hidden(&self) -> usize {
        self.model.architecture.hidden
    }

    /// Checks every span and gives the number of rows.
    fn check(&self, memory: &Memory, step: Step<'_>) -> Result<usize, ModelError> {
        let spans = step.spans.len();
        if spans > SPANS_MAX {
            return Err(ModelError::TooManySpans { spans });
        }
        let mut rows = 0;
        for (i, span) in step.spans.iter().enumerate() {
            if let Some(feature) = span.unsupported() {
                return Err(ModelError::UnsupportedSpan(feature));
            }
            let (sequence, position) = (span.sequence.0, span.position);
            if step.spans[..i]
                .iter()
                .any(|other| other.sequence == span.sequence)
            {
                return Err(ModelError::SequenceTwice(sequence));
            }
            let len = memory.table().len(span.sequence)?;
            if len != position {
                return Err(ModelError::WrongPosition {
                    sequence,
                    position,
                    len,
                });
            }
            self.check_input(span)?;
            match span.rows_of(self.hidden()) {
                0 => return Err(ModelError::EmptySpan(sequence)),
                n => rows += n,
            }
        }
        let capacity = self.work.capacity;
        if rows > capacity {
            Err(ModelError::StepTooLarge { rows, capacity })
        } else {
            Ok(rows)
        }
    }

    /// Checks what enters a span and what is wanted of it.
    fn check_input(&self, span: &Span<'_>) -> Result<(), ModelError> {
        let (hidden, vocabulary) = (self.hidden(), self.model.architecture.vocabulary);
        match span.input {
            Input::Tokens(tokens) => {
                if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
                    return Err(ModelError::NoSuchToken { token, vocabulary });
                }
            }
            Input::Vectors(vectors) if vectors.len() % hidden != 0 => {
                return Err(ModelError::VectorLength {
                    values: vectors.len(),
                    hidden,
                });
            }
            Input::Vectors(_) => {}
        }
        if let Rows::Some(rows) = span.want.logits {
            let len = span.rows_of(hidden);
            let ascending = rows.is_sorted_by(|a, b| a < b);
            if !ascending || rows.last().is_some_and(|&last| last >= len) {
                return Err(ModelError::WantedRows { len });
            }
        }
        Ok(())
    }

    /// Fills the residual stream and the angles of every row.
    fn enter(&mut self, step: Step<'_>, rows: usize) {
        let (model, ops, work) = (&self.model, &self.ops, &mut self.work);
        let hidden = model.architecture.hidden;
        work.positions.clear();
        let mut first = 0;
        for span in step.spans {
            let n = span.rows_of(hidden);
            work.positions
                .extend((span.position..span.position + n).map(|p| p as u32));
            let stream = &mut work.stream[first * hidden..(first + n) * hidden];
            match span.input {
                Input::Tokens(tokens) => {
                    ops.embed(
                        &model.embedding,
                        model.architecture.embedding_scale,
                        tokens,
                        stream,
                    );
                }
                Input::Vectors(vectors) => stream.copy_from_slice(vectors),
            }
            first += n;
        }
        for (angles, table) in work.angles.iter_mut().zip(&model.ropes) {
            angles.fill(ops, table, &work.positions[..rows]);
        }
    }

    fn block(
        &mut self,
        memory: &mut Memory,
        step: Step<'_>,
        layer: usize,
        rows: usize,
    ) -> Result<(), ModelError> {
        let model = Arc::clone(&self.model);
        let hidden = self.hidden();
        for (branch, spec) in model.blocks[layer]
            .iter()
            .zip(&model.architecture.blocks[layer].branches)
        {
            match (&branch.operation, &spec.operation) {
                (LoadedOperation::Attention(loaded), Operation::Mixer(Mixer::Attention(spec))) => {
                    let place = mixer::attention::Place { layer, step, rows };
                    let norm = branch.pre_norm.as_ref();
                    mixer::attention::run(
                        &self.ops,
                        &mut self.work,
                        memory,
                        place,
                        (spec, norm, loaded),
                    )?;
                }
                (LoadedOperation::Gated(loaded), Operation::Ffn(Ffn::Gated(spec))) => {
                    self.gated(spec, branch.pre_norm.as_ref(), loaded, rows);
                }
                _ => unreachable!("loaded operations follow the table"),
            }
            let (stream, result) = (
                &mut self.work.stream[..rows * hidden],
                &mut self.work.branch,
            );
            let result = &mut result[..rows * hidden];
            if let Some(norm) = &branch.post_norm {
                self.ops.norm_in_place(norm, result);
            }
            self.ops.add(stream, result, branch.scale, hidden);
        }
        match self
            .ops
            .first_non_finite(&self.work.stream[..rows * hidden], hidden)
        {
            Some((row, index)) => Err(ModelError::NonFinite {
                layer,
                position: self.work.positions[row] as usize,
                index,
                value: self.work.stream[row * hidden + index],
            }),
            None => Ok(()),
        }
    }

    /// `work.branch = down(act(gate x) · up x)` with x the normed stream.
    fn gated(&mut self, spec: &GatedSpec, norm: Option<&Norm>, loaded: &LoadedGated, rows: usize) {
        let (ops, work, inner) = (&self.ops, &mut self.work, spec.up.rows);
        let x = Activations {
            source: Source::normed(norm, &work.stream[..rows * spec.up.cols]),
            rows,
            cols: spec.up.cols,
        };
        let (gate, up) = (&mut work.gate[..rows * inner], &mut work.up[..rows * inner]);
        let maps = [(&loaded.gate, &mut *gate), (&loaded.up, &mut *up)];
        ops.linear(x, &mut work.linear, maps);
        let x = Activations {
            source: Source::Gated {
                activation: spec.activation,
                gate,
                up,
            },
            rows,
            cols: inner,
        };
        let maps = [(&loaded.down, &mut work.branch[..rows * spec.down.rows])];
        ops.linear(x, &mut work.linear, maps);
    }

    /// Final norm and head for the wanted rows, [`HEAD_ROWS`] at a time.
    fn leave(
        &mut self,
        step: Step<'_>,
        sink: &mut dyn FnMut(Logits<'_>),
    ) -> Result<(), ModelError> {
        let hidden = self.hidden();
        let batch = HEAD_ROWS.min(self.work.capacity);
        let mut pending = [(0, 0); HEAD_ROWS];
        let mut count = 0;
        let mut first = 0;
        for (index, span) in step.spans.iter().enumerate() {
            let n = span.rows_of(hidden);
            for i in 0..n {
                if !span.wants(i, n) {
                    continue;
                }
                let row = &self.work.stream[(first + i) * hidden..][..hidden];
                self.work.wanted[count * hidden..][..hidden].copy_from_slice(row);
                pending[count] = (index, span.position + i);
                count += 1;
                if count == batch {
                    self.head(&pending[..count], sink)?;
                    count = 0;
                }
            }
            first += n;
        }
        if count > 0 {
            self.head(&pending[..count], sink)
        } else {
            Ok(())
        }
    }

    fn head(
        &mut self,
        rows: &[(usize, usize)],
        sink: &mut dyn FnMut(Logits<'_>),
    ) -> Result<(), ModelError> {
        let (model, ops, work) = (&self.model, &self.ops, &mut self.work);
        let (n, hidden) = (rows.len(), model.architecture.hidden);
        let vocabulary = model.architecture.vocabulary;
        let x = Activations {
            source: Source::normed(Some(&model.final_norm), &work.wanted[..n * hidden]),
            rows: n,
            cols: hidden,
        };
        let logits = &mut work.logits[..n * vocabulary];
        let maps = [(&model.head, &mut *logits)];
        ops.linear(x, &mut work.linear, maps);
        let spec = &model.architecture.head;
        if spec.scale != 1.0 || spec.softcap.is_some() {
            ops.scale_and_cap(logits, spec.scale, spec.softcap, vocabulary);
        }
        if let Some((row, token)) = ops.first_non_finite(logits, vocabulary) {
            return Err(ModelError::NonFiniteLogit {
                token,
                position: rows[row].1,
                value: logits[row * vocabulary + token],
            });
        }
        for (&(span, position), values) in rows.iter().zip(logits.chunks_exact(vocabulary)) {
            sink(Logits {
                span,
                position,
                values,
            });
        }
        Ok(())
    }
}
