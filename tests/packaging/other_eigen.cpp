// A library that uses Eigen as Mixtape does, compiled in another way.
#include <Eigen/Core>

template <class T>
double product(int n) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix a = Matrix::Constant(n, n, T(2)), b = Matrix::Ones(n, n);
  const Matrix c = a * b;
  const Eigen::Matrix<T, Eigen::Dynamic, 1> v = c * Eigen::Matrix<T, Eigen::Dynamic, 1>::Ones(n);
  return static_cast<double>(c.sum() + v.sum());
}

double other_product(int n) { return product<float>(n) + product<double>(n); }
