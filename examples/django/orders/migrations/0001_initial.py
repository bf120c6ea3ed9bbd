from django.db import migrations, models


def fill_the_store(apps, schema_editor):
    stock = apps.get_model("orders", "Stock").objects.using(schema_editor.connection.alias)
    stock.create(article="chair", pieces=1_000_000)


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.CharField(max_length=50, unique=True)),
                ("article", models.CharField(max_length=50)),
                ("packed_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Stock",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("article", models.CharField(max_length=50, unique=True)),
                ("pieces", models.IntegerField()),
            ],
        ),
        migrations.RunPython(fill_the_store),
    ]
