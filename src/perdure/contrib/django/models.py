"""What Django's admin and its permissions need to know of jobs and runs. They have no tables of Django's: `admin` fills
them from the app, and `manage.py migrate` makes Perdure's own tables (see `apps`)."""

from __future__ import annotations

from django.db import models


class Job(models.Model):
    """A job as the admin shows it."""

    id = models.UUIDField(primary_key=True)
    kind = models.CharField(max_length=255)
    queue = models.CharField(max_length=255)
    state = models.CharField(max_length=20)
    priority = models.IntegerField()
    attempts = models.IntegerField()
    created_at = models.DateTimeField("created")
    run_at = models.DateTimeField("due", null=True)
    finished_at = models.DateTimeField("ended", null=True)
    error = models.TextField(null=True)
    payload = models.JSONField(null=True)
    result = models.JSONField(null=True)

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = (("control_job", "Can retry, cancel, pause and resume jobs"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Run(models.Model):
    """One attempt at a job as the admin shows it."""

    id = models.UUIDField(primary_key=True)
    job_id = models.UUIDField("job")
    kind = models.CharField(max_length=255)
    state = models.CharField(max_length=20)
    attempt = models.IntegerField()
    node_id = models.UUIDField("node")
    started_at = models.DateTimeField("started")
    finished_at = models.DateTimeField("ended", null=True)
    duration_ms = models.IntegerField("ms", null=True)
    error_type = models.CharField(max_length=255, null=True)
    error = models.TextField(null=True)
    traceback = models.TextField(null=True)

    class Meta:
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id}, attempt {self.attempt}"
