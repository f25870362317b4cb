"""nights/jobs: jobs as files: what they may say (`model`), reading them (`files`), when they are due (`schedule`), who starts them (`schedulers`)."""
