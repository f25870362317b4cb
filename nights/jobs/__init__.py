"""nights/jobs: jobs as files: what they may say (`model`), reading them (`files`), when they are due (`schedule`), and the files of the
programs that start them (`schedulers`)."""
