#ifndef SPARROW_CLIENT_RUN_EMBEDDED_H_
#define SPARROW_CLIENT_RUN_EMBEDDED_H_

#include <string>

#include "base/interrupt.h"
#include "client/embedded_cluster.h"
#include "client/follow_job.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// Starts a cluster in this process, runs the job on it to its end (FollowJob) and stops the cluster. A signal cancels
// the job; the exit status is then 128 + signal, unless the job had succeeded before. `resume` is a checkpoint, or
// empty.
int RunEmbedded(v1::Job job, const EmbeddedClusterOptions& options, const std::string& resume,
                const JobOutputs& outputs, Interrupt* interrupt);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_RUN_EMBEDDED_H_
