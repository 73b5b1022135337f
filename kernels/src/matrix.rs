//! Small matrix products on borrowed slices, one thread each: the callers are already parallel over heads.

/// A strided view of `rows × cols` numbers that starts at the slice's first element.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub cols: usize,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<'a> View<'a> {
    /// Row-major rows that lie `stride` apart.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        Self { data, rows, cols, row_stride: stride, col_stride: 1 }
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// Whether every element lies in the slice.
    pub fn fits(&self) -> bool {
        self.rows == 0
            || self.cols == 0
            || (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride < self.data.len()
    }
}

/// `out = scale · a·b`, or `out += scale · a·b` when `accumulate`; `out` is row-major `[a.rows, b.cols]` with rows
/// `out_stride` apart.
pub fn product(out: &mut [f32], out_stride: usize, a: View, b: View, scale: f32, accumulate: bool) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert!(k == b.rows && a.fits() && b.fits(), "matrix product of unfit views");
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= out_stride && (m - 1) * out_stride + n <= out.len(), "matrix product into a short buffer");
    // SAFETY: the three views were just checked to lie inside their slices, and `out` is borrowed alone.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_product_accumulates() {
        let a = [1.0, 2.0, 9.0, 3.0, 4.0, 9.0];
        let b = [1.0, 0.0, 1.0, 1.0];
        let mut out = [10.0; 4];
        product(&mut out, 2, View::new(&a, 2, 2, 3), View::new(&b, 2, 2, 2).t(), 2.0, true);
        assert_eq!(out, [12.0, 16.0, 16.0, 24.0]);
    }
}
