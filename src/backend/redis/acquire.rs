//! Acquiring, and what is granted to a caller that is gone.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Shared;
use super::scripts::ACQUIRE;
use crate::backend::AcquireRequest;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::resource::ResourceName;

/// A lease, and whether its token is new.
type Granted = Vec<(Lease, bool)>;

/// Acquires in a task of its own, which goes on when the caller's future is
/// dropped, and then releases what it was granted (R25).
pub(super) async fn acquire_all(
    shared: &Arc<Shared>,
    request: &AcquireRequest,
) -> Result<Vec<Lease>> {
    request.validate()?;
    let (reply, answer) = oneshot::channel();
    let mut waiting = Waiting {
        shared: shared.clone(),
        answer,
    };
    let task = {
        let (shared, request) = (shared.clone(), request.clone());
        async move {
            if reply.is_closed() {
                return;
            }
            let answer = acquire(&shared, &request).await;
            if let Err(Ok(unwanted)) = reply.send(answer) {
                release(&shared, unwanted).await;
            }
        }
    };
    tokio::spawn(task);
    let granted = (&mut waiting.answer)
        .await
        .map_err(|_| Error::OutcomeUnknown {
            message: "the runtime shut down while a lease was acquired".to_owned(),
        })??;
    Ok(granted.into_iter().map(|(lease, _)| lease).collect())
}

async fn acquire(shared: &Shared, request: &AcquireRequest) -> Result<Granted> {
    let names: Vec<&ResourceName> = request.resources.iter().collect();
    let mut call = shared.call(&ACQUIRE, &names);
    call.text(request.owner.as_str());
    call.number(&request.ttl.as_millis());
    call.flag(request.create);
    for resource in &request.resources {
        call.text(resource.as_str());
    }
    let mut answer = shared.run(&call).await?;
    request
        .resources
        .iter()
        .map(|resource| {
            let mut parts = answer.nested()?;
            let lease = Lease {
                resource: resource.clone(),
                owner: request.owner.clone(),
                token: parts.token()?,
                expires_at: parts.timestamp()?,
                ttl: request.ttl,
            };
            Ok((lease, parts.flag()?))
        })
        .collect()
}

/// Those with a new token: a lease that was extended has a holder.
async fn release(shared: &Shared, granted: Granted) {
    for (lease, is_new) in granted {
        if is_new {
            // Where it fails, the lease ends by itself.
            let _ = shared.release(&lease).await;
        }
    }
}

struct Waiting {
    shared: Arc<Shared>,
    answer: oneshot::Receiver<Result<Granted>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // An answer that was sent and not looked at; one that is still to come
        // finds the channel closed.
        self.answer.close();
        if let Ok(Ok(unwanted)) = self.answer.try_recv()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let shared = self.shared.clone();
            runtime.spawn(async move { release(&shared, unwanted).await });
        }
    }
}
