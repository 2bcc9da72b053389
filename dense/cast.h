#ifndef SPARROW_DENSE_CAST_H_
#define SPARROW_DENSE_CAST_H_

#include "dense/device_matrix.h"
#include "dense/matrix.h"

namespace sparrow {

// to[i, j] = from[i, j] rounded to the precision's type, to the nearest, ties to even; columns from.cols to to.cols
// become 0. `to` lies in host memory here. REQUIRES: to.rows == from.rows, to.cols >= from.cols.
void CastCpu(Precision precision, ConstMatrix from, const DeviceMatrix& to);

// The reverse of one element of 16 bits. REQUIRES: a precision of 16 bits.
float FromBits(Precision precision, uint16_t bits);

}  // namespace sparrow

#endif  // SPARROW_DENSE_CAST_H_
